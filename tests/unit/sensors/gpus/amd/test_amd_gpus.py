"""AMD GPUs are read under the names of NVIDIA's, as far as a stand-in for ``amdsmi`` shows."""

from __future__ import annotations

import importlib
import logging
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from nvml.scripted import HERE, by_key

from otel_mlperf import names
from otel_mlperf.sensors.gpus.amd_gpus import AMD
from otel_mlperf.sensors.gpus.vendors import DetectedVendor
from otel_mlperf.sensors.sensor_kind import Surroundings

if TYPE_CHECKING:
    from pathlib import Path

HOST = "pid:[4026531836]"


def amd_sensor(level="detailed", **given):
    """What the GPUs of AMD say, looked for as the agent does."""
    return DetectedVendor("amd", lambda: AMD, Surroundings(level, **given))


@pytest.fixture
def amdsmi(tmp_path, monkeypatch):
    modules = tmp_path / "modules"
    modules.mkdir()
    shutil.copy(HERE / "amdsmi_stand_in.py", modules / "amdsmi.py")
    monkeypatch.syspath_prepend(modules)
    yield importlib.import_module("amdsmi")
    del sys.modules["amdsmi"]


@pytest.fixture
def with_driver(tmp_path: Path) -> Path:
    (tmp_path / "sys" / "module" / "amdgpu").mkdir(parents=True)
    return tmp_path / "sys"


def test_an_amd_gpu_says_what_it_offers_under_the_same_names(amdsmi, with_driver, tmp_path):
    """Values are converted to the units of the names; "N/A" is absent."""
    (tmp_path / "proc" / "4711" / "ns").mkdir(parents=True)
    (tmp_path / "proc" / "4711" / "ns" / "pid").symlink_to(HOST)
    sensor = amd_sensor(sys=with_driver, proc=tmp_path / "proc", pids=lambda: [4711, 5])
    found = by_key(sensor.read())
    sensor.close()

    assert {key: value for key, value in found.items() if key[1] == "uuid-0"} == {
        ("hw.gpu.utilization", "uuid-0", "general"): 0.4,
        ("ml.accelerator.memory.busy", "uuid-0"): 0.12,
        ("hw.gpu.memory.usage", "uuid-0"): 48 << 30,
        ("hw.gpu.memory.limit", "uuid-0"): 192 << 30,
        ("hw.gpu.memory.utilization", "uuid-0"): 0.25,
        ("hw.power", "uuid-0"): 450,
        ("hw.energy", "uuid-0"): 15.25,
        ("hw.temperature", "uuid-0", "gpu"): 66,
        ("hw.temperature", "uuid-0", "memory"): 55,
        ("hw.temperature.limit", "uuid-0", "throttled", "gpu"): 100,
        ("hw.temperature.limit", "uuid-0", "critical", "gpu"): 105,
        ("ml.accelerator.clock.frequency", "uuid-0", "sm"): 2100e6,
        ("ml.accelerator.clock.limit", "uuid-0", "sm"): 2100e6,
        ("ml.accelerator.clock.frequency", "uuid-0", "memory"): 1300e6,
        ("hw.errors", "uuid-0", "corrected"): 3,
        ("hw.errors", "uuid-0", "uncorrected"): 0,
        ("ml.accelerator.pcie.width", "uuid-0"): 16,
        ("ml.accelerator.pcie.width.limit", "uuid-0"): 16,
        ("ml.accelerator.process.memory.usage", "uuid-0", 4711): 7,
    }
    assert found["hw.power", "uuid-1"] == 500
    assert [device.model for device in sensor.devices] == ["AMD Instinct MI300X"] * 2
    assert amdsmi.CALLS[-1] == "shut_down"


@pytest.mark.fault("F71")
def test_what_amdsmi_refuses_is_absent_and_asked_again_after_five_minutes(
    amdsmi, with_driver, caplog
):
    """One line a GPU, no question in vain, and the reading is back when it is offered."""
    caplog.set_level(logging.INFO)
    now_s = 0.0
    sensor = amd_sensor(sys=with_driver, clock=lambda: now_s)
    amdsmi.REFUSED.add("activity")
    first = by_key(sensor.read())
    amdsmi.REFUSED.clear()
    amdsmi.CALLS.clear()
    now_s = 299.0
    soon = by_key(sensor.read())
    asked = list(amdsmi.CALLS)
    now_s = 301.0
    later = by_key(sensor.read())

    utilization = ("hw.gpu.utilization", "uuid-1", "general")
    assert [utilization in found for found in (first, soon, later)] == [False, False, True]
    assert "activity" not in asked
    assert later[utilization] == 0.41
    assert len([line for line in caplog.messages if "does not provide: activity" in line]) == 2


def test_an_answer_of_another_version_costs_that_reading_alone(amdsmi, with_driver, caplog):
    """What it does not hold is absent, and said once a GPU; all else is read."""
    caplog.set_level(logging.INFO)
    amdsmi.CHANGED.add("activity")
    sensor = amd_sensor(sys=with_driver)
    found = by_key(sensor.read())

    assert ("hw.gpu.utilization", "uuid-0", "general") not in found
    assert found["hw.power", "uuid-0"] == 450
    assert len([line for line in caplog.messages if "does not provide: activity" in line]) == 2


@pytest.mark.fault("F70")
def test_a_machine_without_the_driver_never_loads_amdsmi(amdsmi, tmp_path):
    """No amdgpu: nothing is said and nothing asked."""
    sensor = amd_sensor(sys=tmp_path)

    assert sensor.read() == []
    assert amdsmi.CALLS == []


@pytest.mark.fault("F70")
def test_a_library_that_does_not_start_is_said_once(amdsmi, with_driver, caplog):
    """Whatever amdsmi raises on start: one line, no readings, and another try later."""
    caplog.set_level(logging.INFO)
    now_s = 0.0
    sensor = amd_sensor(sys=with_driver, clock=lambda: now_s)
    amdsmi.REFUSED.add("init")
    off = [sensor.read(), sensor.read()]
    amdsmi.REFUSED.clear()
    now_s = 301.0

    assert off == [[], []]
    assert sensor.read()
    assert len(caplog.messages) == 1


def test_the_labels_are_those_of_the_names(amdsmi, with_driver):
    """Each series carries only labels that its metric documents."""
    documented = {metric.name: metric.labels for metric in names.METRICS}
    said = amd_sensor(sys=with_driver).read()

    assert [one for one in said if not set(one.labels) <= set(documented[one.metric])] == []
