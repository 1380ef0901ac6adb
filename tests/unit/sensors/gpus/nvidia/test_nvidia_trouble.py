"""Readings survive failures of GPUs, drivers and libraries."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from nvml.scripted import LOST, MISMATCH, Reader, Script, of_device, uuid_of

if TYPE_CHECKING:
    from pathlib import Path

UUID0, UUID1 = uuid_of(0), uuid_of(1)
LOSSES = ("ml.accelerator.lost", UUID0)
UTILIZATION = ("hw.gpu.utilization", UUID0, "general")
UTILIZATION_1 = ("hw.gpu.utilization", UUID1, "general")
POWER = ("hw.power", UUID0)


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "gpus", 2)


@pytest.mark.fault("F72")
def test_a_lost_gpu_is_absent_and_counted_and_comes_back(script, nvml_library):
    """It is looked for later and later while the other goes on, and each loss counts once."""
    with Reader(script, nvml_library) as reader:
        reader.read()
        script.change({"0.lost": LOST})
        lost = reader.read(after_s=5)
        still = [reader.read(after_s=seconds) for seconds in (5, 10, 20)]
        script.change({}, "0.lost")
        too_early = reader.read(after_s=39)
        back = reader.read(after_s=2)
        script.change({"0.lost": LOST})
        again = reader.read(after_s=5)
        log = reader.ask("log")

    for found in (lost, *still, too_early):
        assert of_device(found, UUID0).keys() <= {LOSSES, ("hw.errors", UUID0, "xid")}
        assert found[LOSSES] == 1
        assert found[UTILIZATION_1] == 0.51
    assert back[UTILIZATION] == 0.5
    assert back[LOSSES] == 1
    assert again[LOSSES] == 2
    assert again["ml.accelerator.lost", UUID1] == 0
    assert [line.split(" ", 1)[0] for line in log if "respond" in line] == [
        "WARNING",
        "INFO",
        "WARNING",
    ]


@pytest.mark.fault("F72")
def test_a_lost_gpu_keeps_its_place_and_says_why(script, nvml_library):
    """Others are not taken for it, and the reason stays until it answers again."""
    with Reader(script, nvml_library) as reader:
        reader.read()
        script.change({"0.lost": LOST})
        reader.read(after_s=5)
        gone = said_of_losses(reader, after_s=5)
        places = [(uuid, number) for uuid, number, *_ in reader.ask("devices")]
        script.change({}, "0.lost")
        back = said_of_losses(reader, after_s=30)

    assert gone == {UUID0: "GPU is lost", UUID1: ""}
    assert places == [(UUID0, 0), (UUID1, 1)]
    assert back == {UUID0: "", UUID1: ""}


def said_of_losses(reader, after_s):
    reader.ask("wait", after_s)
    said = reader.ask("read")
    return {device: text for metric, *_, device, text in said if metric == LOSSES[0]}


@pytest.mark.fault("F72")
@pytest.mark.parametrize("code", [10, 16, 28], ids=["timeout", "reset required", "not found"])
def test_a_gpu_that_needs_a_reset_counts_as_lost(code, script, nvml_library):
    """Every error that means the device is not there is a loss."""
    with Reader(script, nvml_library) as reader:
        reader.read()
        script.change({"0.fail.nvmlDeviceGetPowerUsage": code})
        found = reader.read()

    assert POWER not in found
    assert found[LOSSES] == 1


@pytest.mark.fault("F72")
def test_a_handle_that_a_reset_made_invalid_is_replaced(script, nvml_library):
    """An argument that was right before and is wrong now is the handle: NVML is started anew."""
    with Reader(script, nvml_library) as reader:
        reader.read()
        script.change({"0.fail.nvmlDeviceGetUtilizationRates": 2})
        broken = reader.read(after_s=5)
        script.change({}, "0.fail")
        back = reader.read(after_s=5)

    assert UTILIZATION not in broken
    assert back[UTILIZATION] == 0.5


@pytest.mark.fault("F73")
def test_a_hanging_call_keeps_nobody_waiting(script, nvml_library):
    """A pass past its deadline says nothing and is counted, and so is each one wanted after it."""
    health = ("otel_mlperf.sampler.late", "", "gpu")
    with Reader(script, nvml_library) as reader:
        reader.read()
        script.change({"hang.nvmlDeviceGetPowerUsage": 1})
        assert reader.ask("begin") is True
        assert reader.ask("take") is None
        reader.ask("wait", 31)
        late = by_name(reader.ask("take"))
        assert reader.ask("begin") is False
        refused = by_name(reader.ask("take"))
        assert reader.ask("take") is None
        script.change({}, "hang")
        after = until_it_answers(reader)

    assert late == {"otel_mlperf.sampler.duration": 31, "otel_mlperf.sampler.late": 1}
    assert refused["otel_mlperf.sampler.late"] == 2
    assert refused.keys() == late.keys()
    assert after[UTILIZATION] == 0.5
    assert after[health] >= 2


def by_name(said):
    return {metric: value for metric, _, value, *_ in said}


def until_it_answers(reader):
    return next(
        found for found in (reader.read() for _ in itertools.count()) if UTILIZATION in found
    )


@pytest.mark.fault("F73")
def test_a_hang_does_not_hold_up_the_end_of_the_process(script, nvml_library):
    """The thread that hangs is left behind."""
    with Reader(script, nvml_library) as reader:
        reader.read()
        script.change({"hang.nvmlDeviceGetPowerUsage": 1})
        assert reader.ask("begin") is True


@pytest.mark.fault("F70")
@pytest.mark.parametrize("code", [MISMATCH, 9, 4], ids=["mismatch", "no driver", "no permission"])
def test_a_driver_that_does_not_fit_turns_the_sensor_off_for_five_minutes(
    code, script, nvml_library
):
    """Nothing is said, one line is logged, and when the driver is repaired the readings come."""
    script.change({"init": code})
    with Reader(script, nvml_library) as reader:
        off = [reader.read(), reader.read(after_s=299), reader.read(after_s=2)]
        script.change({"init": 0})
        repaired = reader.read(after_s=301)
        log = reader.ask("log")

    assert [of_device(found, UUID0) for found in off] == [{}, {}, {}]
    assert repaired[UTILIZATION] == 0.5
    assert [line.split(":")[0] for line in log if "no readings" in line] == [
        "INFO no readings of NVIDIA GPUs (retried every 5 minutes)"
    ]


@pytest.mark.fault("F70")
def test_a_machine_without_the_library_says_so_once(script, nvml_library, tmp_path):
    """No library: no readings, no failure, one line."""
    with Reader(script, tmp_path) as reader:
        found = [reader.read(), reader.read(after_s=400)]
        log = reader.ask("log")

    assert [key for key in found[1] if key[1]] == []
    assert [line for line in log if "no readings" in line] == [
        "INFO no readings of NVIDIA GPUs (retried every 5 minutes): "
        "NVML: NVML Shared Library Not Found"
    ]


@pytest.mark.fault("F70")
def test_a_machine_without_gpus_says_so_once(script, nvml_library):
    """A driver without devices is no failure, and a device that comes is found."""
    script.change({"gpus": 0})
    with Reader(script, nvml_library) as reader:
        none = reader.read()
        script.change({"gpus": 1})
        found = reader.read(after_s=301)

    assert [key for key in none if key[1]] == []
    assert found[UTILIZATION] == 0.5


def test_an_error_of_the_driver_is_counted_and_named(script, nvml_library):
    """XIDs add up per GPU, the last one's number is said, and both outlive a lost GPU."""
    with Reader(script, nvml_library) as reader:
        before = reader.read()
        script.change({"event.0": "1 31", "event.1": "1 79", "1.lost": LOST})
        told = reader.read(after_s=5)
        script.change({}, "1.lost")
        later = reader.read(after_s=5)

    assert before["hw.errors", UUID1, "xid"] == 0
    assert ("ml.accelerator.xid", UUID1) not in before
    for found in (told, later):
        assert found["hw.errors", UUID1, "xid"] == 2
        assert found["ml.accelerator.xid", UUID1] == 79
        assert found["hw.errors", UUID0, "xid"] == 0
    assert UTILIZATION_1 in later


def test_a_gpu_that_tells_no_errors_has_no_count_of_them(script, nvml_library):
    """Where NVML cannot listen, no XID is not the same as none."""
    script.change({}, "0.xids")
    with Reader(script, nvml_library) as reader:
        found = reader.read()

    assert ("hw.errors", UUID0, "xid") not in found
    assert found["hw.errors", UUID1, "xid"] == 0
