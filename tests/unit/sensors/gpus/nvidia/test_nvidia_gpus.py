"""The sensor reports NVML's values, in the right units, and nothing if NVML has none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from nvml.scripted import GIB, NO_PERMISSION, UNKNOWN, Reader, Script, of_device, uuid_of

from otel_mlperf import names

if TYPE_CHECKING:
    from pathlib import Path

UUID0, UUID1 = uuid_of(0), uuid_of(1)
LOSSES = ("ml.accelerator.lost", UUID0)
UTILIZATION = ("hw.gpu.utilization", UUID0, "general")
UTILIZATION_1 = ("hw.gpu.utilization", UUID1, "general")
POWER, POWER_1 = ("hw.power", UUID0), ("hw.power", UUID1)


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "gpus", 2)


def test_everything_that_a_gpu_offers_is_said_in_the_units_of_the_names(script, nvml_library):
    """At the widest level, each reading of a healthy GPU is NVML's, converted."""
    script.change(
        {
            "0.throttle": 0x24,
            "0.processes": "4711:1073741824:4294967295:4294967295 4712:5:0:0",
            "0.samples": "4711:10:30:0:1:2 4711:20:40:0:3:4",
        }
    )
    held = ("sw_power_cap", "sw_thermal_slowdown")
    free = ("gpu_idle", "applications_clocks_setting", "hw_slowdown", "sync_boost")
    free += ("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting")
    expected = {
        UTILIZATION: 0.5,
        ("hw.gpu.utilization", UUID0, "encoder"): 0.03,
        ("hw.gpu.utilization", UUID0, "decoder"): 0.04,
        ("ml.accelerator.memory.busy", UUID0): 0.2,
        ("hw.gpu.memory.usage", UUID0): 10 * GIB,
        ("hw.gpu.memory.limit", UUID0): 80 * GIB,
        ("hw.gpu.memory.utilization", UUID0): 0.125,
        ("ml.accelerator.memory.reserved", UUID0): GIB,
        POWER: 300.5,
        ("hw.energy", UUID0): 1000.001,
        ("ml.accelerator.power.limit", UUID0): 700,
        ("hw.temperature", UUID0, "gpu"): 60,
        ("hw.temperature", UUID0, "memory"): 71,
        ("hw.temperature.limit", UUID0, "critical", "gpu"): 95,
        ("hw.temperature.limit", UUID0, "throttled", "gpu"): 90,
        ("hw.temperature.limit", UUID0, "max", "gpu"): 87,
        ("hw.temperature.limit", UUID0, "max", "memory"): 105,
        ("ml.accelerator.temperature.margin", UUID0): 25,
        ("ml.accelerator.clock.frequency", UUID0, "sm"): 1755e6,
        ("ml.accelerator.clock.frequency", UUID0, "memory"): 2619e6,
        ("ml.accelerator.clock.limit", UUID0, "sm"): 1980e6,
        ("ml.accelerator.clock.limit", UUID0, "memory"): 2619e6,
        ("ml.accelerator.performance_state", UUID0): 0,
        ("ml.accelerator.pcie.generation", UUID0): 5,
        ("ml.accelerator.pcie.generation.limit", UUID0): 5,
        ("ml.accelerator.pcie.width", UUID0): 16,
        ("ml.accelerator.pcie.width.limit", UUID0): 16,
        ("ml.accelerator.nvlink.active", UUID0): 17,
        ("hw.gpu.io", UUID0, "pcie", "transmit"): 5e9,
        ("hw.gpu.io", UUID0, "pcie", "receive"): 7e9,
        ("hw.gpu.io", UUID0, "nvlink", "transmit"): 1000 * 1024,
        ("hw.gpu.io", UUID0, "nvlink", "receive"): 2000 * 1024,
        ("hw.errors", UUID0, "corrected"): 2,
        ("hw.errors", UUID0, "uncorrected"): 0,
        ("hw.errors", UUID0, "pcie_replay"): 6,
        ("hw.errors", UUID0, "nvlink_crc_flit"): 0,
        ("hw.errors", UUID0, "nvlink_crc_data"): 1,
        ("hw.errors", UUID0, "xid"): 0,
        ("ml.accelerator.memory.remapped", UUID0, "corrected"): 1,
        ("ml.accelerator.memory.remapped", UUID0, "uncorrected"): 0,
        ("ml.accelerator.memory.repair.pending", UUID0, "rows"): 0,
        ("ml.accelerator.memory.repair.failed", UUID0): 0,
        ("ml.accelerator.process.memory.usage", UUID0, 4711): GIB,
        ("ml.accelerator.process.utilization", UUID0, "general", 4711): 0.4,
        ("ml.accelerator.process.utilization", UUID0, "encoder", 4711): 0.03,
        ("ml.accelerator.process.utilization", UUID0, "decoder", 4711): 0.04,
        LOSSES: 0,
    }
    expected |= {("ml.accelerator.throttle", UUID0, reason): 1 for reason in held}
    expected |= {("ml.accelerator.throttle", UUID0, reason): 0 for reason in free}
    policies = ("power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability")
    expected |= {
        ("ml.accelerator.throttle.time", UUID0, policy): 1.5 * place
        for place, policy in enumerate(policies)
    }
    options = {"level": "comprehensive", "pids": [4711], "proc": str(proc(script, {4711: HOST}))}

    with Reader(script, nvml_library, **options) as reader:
        found = reader.read()

    assert of_device(found, UUID0) == expected


HOST, CONTAINER = "pid:[4026531836]", "pid:[4026533333]"


def proc(script, namespaces):
    root = script.path.parent / "proc"
    for pid, namespace in namespaces.items():
        (root / str(pid) / "ns").mkdir(parents=True)
        (root / str(pid) / "ns" / "pid").symlink_to(namespace)
    return root


def test_every_label_is_one_that_the_names_document(script, nvml_library):
    """Each series carries only labels of its metric, and the GPU's UUID as hw.id."""
    documented = {metric.name: metric.labels for metric in names.METRICS}

    with Reader(script, nvml_library, level="comprehensive") as reader:
        said = reader.ask("read")

    assert len(said) > 100
    assert [m for m in said if not set(m[1]) <= set(documented[m[0]])] == []
    assert [m for m in said if m[4] and m[1]["hw.id"] != m[4]] == []
    model = {m[1]["hw.model"] for m in said if "hw.model" in m[1]}
    assert model == {"NVIDIA H100 80GB HBM3"}


def test_each_level_holds_what_the_one_before_it_holds(script, nvml_library):
    """Each level says more than the one before it, and all that that one says."""
    keys = []
    for level in ("basic", "detailed", "comprehensive"):
        with Reader(script, nvml_library, level=level) as reader:
            keys.append(set(reader.read()))

    assert UTILIZATION in keys[0]
    assert keys[0] < keys[1] < keys[2]


def test_two_gpus_are_told_apart_as_their_values_change(script, nvml_library):
    """What changes on one GPU changes on that one alone, and counters are exact."""
    with Reader(script, nvml_library) as reader:
        first = reader.read()
        script.change({"1.utilization": "7 1", "1.field.83": "3 1234567890123"})
        second = reader.read(after_s=5)

    assert (first[UTILIZATION], first[UTILIZATION_1]) == (0.5, 0.51)
    assert (second[UTILIZATION], second[UTILIZATION_1]) == (0.5, 0.07)
    assert first["hw.energy", UUID1] == 1000.002
    assert second["hw.energy", UUID1] == 1234567890.123


def test_limits_are_asked_for_once_a_minute(script, nvml_library):
    """A limit that was changed shows within a minute, and is there in between."""
    limit = ("ml.accelerator.power.limit", UUID0)
    with Reader(script, nvml_library) as reader:
        reader.read()
        script.change({"0.power_limit": "500000"})
        at_once, later = reader.read(after_s=5), reader.read(after_s=56)

    assert (at_once[limit], later[limit]) == (700, 500)


@pytest.mark.fault("F71")
def test_what_is_not_supported_is_absent_and_said_once(script, nvml_library):
    """Fields that a GPU refuses are missing on it alone and asked for no more; others stay."""
    script.change({"0.fail.nvmlDeviceGetEnforcedPowerLimit": NO_PERMISSION}, "0.power ", "0.power")
    script.change({"0.power_limit": 1, "0.fail.field.82": 3}, "0.encoder", "0.field.197")
    with Reader(script, nvml_library) as reader:
        first = reader.read()
        script.change({"0.power": "1000", "0.field.82": "1 50"}, "0.fail")
        second = reader.read(after_s=600)
        log = reader.ask("log")

    for found in (first, second):
        assert POWER not in found
        assert ("ml.accelerator.power.limit", UUID0) not in found
        assert ("hw.temperature", UUID0, "memory") not in found
        assert ("hw.gpu.utilization", UUID0, "encoder") not in found
        assert ("hw.gpu.io", UUID0, "pcie", "transmit") not in found
        assert ("hw.gpu.io", UUID0, "pcie", "receive") in found
        assert found[POWER_1] == 300.501
        assert found[LOSSES] == 0
    [line] = [line for line in log if UUID0 in line]
    assert line.startswith(f"INFO GPU {UUID0} does not provide: ")
    reasons = dict(
        part.rstrip(")").rsplit(" (", 1)[::-1] for part in line.split(": ", 1)[1].split("; ")
    )
    assert reasons["Insufficient Permissions"] == "power limit"
    assert set(reasons["Not Supported"].split(", ")) == {
        "encoder",
        "memory temperature",
        "pages to repair",
        "PCIe transmit",
        "power",
        "retired pages (corrected)",
        "retired pages (uncorrected)",
    }


@pytest.mark.fault("F71")
def test_an_unknown_error_is_forgiven_after_five_minutes(script, nvml_library):
    """A field that failed for no reason is absent and then asked for again."""
    script.change({"0.fail.nvmlDeviceGetPowerUsage": UNKNOWN})
    with Reader(script, nvml_library) as reader:
        first = reader.read()
        script.change({}, "0.fail")
        soon, later = reader.read(after_s=299), reader.read(after_s=2)

    assert POWER not in first
    assert POWER not in soon
    assert later[POWER] == 300.5


def test_a_byte_counter_of_32_bits_is_absent(script, nvml_library):
    """A count that starts anew many times between two passes says nothing."""
    script.change({"0.field.197": "1 4000000000"})
    with Reader(script, nvml_library) as reader:
        found = reader.read()

    assert ("hw.gpu.io", UUID0, "pcie", "transmit") not in found
    assert found["hw.gpu.io", UUID0, "pcie", "receive"] == 7e9


@pytest.mark.fault("F71")
def test_instances_have_memory_and_no_utilisation(script, nvml_library):
    """With MIG each instance says its memory under its own UUID; its processes count there."""
    mig = {
        "0.mig": 1,
        "0.mig_places": 7,
        "0.mig0.uuid": "MIG-a",
        "0.mig0.memory": f"{10 * GIB} 0 {2 * GIB}",
        "0.mig0.gpu_instance": 1,
        "0.mig0.compute_instance": 0,
        "0.mig2.uuid": "MIG-b",
        "0.mig2.memory": f"{20 * GIB} 0 {5 * GIB}",
        "0.mig2.gpu_instance": 2,
        "0.mig2.compute_instance": 0,
        "0.processes": f"4711:{GIB}:2:0",
    }
    script.change(mig, "0.utilization", "0.encoder", "0.decoder")
    options = {"pids": [4711], "proc": str(proc(script, {4711: HOST}))}
    with Reader(script, nvml_library, **options) as reader:
        found, devices = reader.read(), reader.ask("devices")
        said = reader.ask("read")

    assert found["hw.gpu.memory.usage", "MIG-a"] == 2 * GIB
    assert found["hw.gpu.memory.usage", "MIG-b"] == 5 * GIB
    assert found["hw.gpu.memory.usage", UUID0] == 10 * GIB
    assert found["ml.accelerator.process.memory.usage", "MIG-b", 4711] == GIB
    assert [key for key in found if key[0] == "hw.gpu.utilization" and key[1] != UUID1] == []
    assert devices[0][3] == [["MIG-a", 1, 0], ["MIG-b", 2, 0]]
    parents = {m[4]: m[1].get("hw.parent") for m in said if m[0] == "hw.gpu.memory.usage"}
    assert parents == {"MIG-a": UUID0, "MIG-b": UUID0, UUID0: None, UUID1: None}


def test_processes_in_a_container_are_absent(script, nvml_library):
    """The driver's numbers are the host's: who lives in another namespace is not in its list."""
    script.change({"0.processes": f"7:{GIB}:0:0 8:{GIB}:0:0 9:{GIB}:0:0"})
    options = {"pids": [7, 8, 9], "proc": str(proc(script, {7: HOST, 8: CONTAINER}))}
    with Reader(script, nvml_library, **options) as reader:
        found = reader.read()

    uses = [key for key in found if key[0] == "ml.accelerator.process.memory.usage"]
    assert uses == [("ml.accelerator.process.memory.usage", UUID0, 7)]


def test_a_real_proc_says_in_which_namespace_this_process_is(script, nvml_library):
    """On a host's own /proc a process of ours is found, in a container's none is."""
    ours = os.getpid()
    on_host = os.readlink("/proc/self/ns/pid") == HOST
    script.change({"0.processes": f"{ours}:{GIB}:0:0"})
    with Reader(script, nvml_library, pids=[ours]) as reader:
        found = reader.read()

    assert (("ml.accelerator.process.memory.usage", UUID0, ours) in found) is on_host


@pytest.mark.fault("F75")
def test_gpus_have_the_numbers_of_the_machine(script, nvml_library, tmp_path):
    """Also where some are hidden: the second of three is gpu1, whoever sees it alone."""
    uuids = ("GPU-????????-????-????-????-????????????", uuid_of(0), uuid_of(1))
    for bus, uuid in zip(("0000:1b:00.0", "0000:3b:00.0", "0001:0a:00.0"), uuids, strict=True):
        folder = tmp_path / "driver" / "nvidia" / "gpus" / bus
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\n"
        (folder / "information").write_text(text)
    with Reader(script, nvml_library, proc=str(tmp_path)) as reader:
        reader.read()
        devices = reader.ask("devices")

    assert [(uuid, number) for uuid, number, *_ in devices] == [(uuid_of(0), 1), (uuid_of(1), 2)]
