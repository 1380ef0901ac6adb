"""Each metric is read by the sources, and at the levels, that the list of metrics names."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fake_cuda import Account, fake_torch
from kernel_files import write_files
from nvml.scripted import HERE, Reader, Script

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.agent.model.agent_options import Options, read_options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.agent.readings.sensor_set import this_machine
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.names.sources import SOURCES
from otel_mlperf.pytorch.memory.allocator import Allocator
from otel_mlperf.pytorch.memory.mps_memory import MpsMemory
from otel_mlperf.sensors.gpus.amd_gpus import AMD
from otel_mlperf.sensors.gpus.vendors import DetectedVendor
from otel_mlperf.sensors.host.filesystem import FilesystemSensor
from otel_mlperf.sensors.measurement import LEVELS
from otel_mlperf.sensors.sensor_kind import Surroundings
from otel_mlperf.sensors.timed_sensor import TimedSensor
from otel_mlperf.settings.config import READING_SOURCES

PID = 4711
PROCESS = f"proc/{PID}/"
CGROUP = "sys/fs/cgroup/job/"
MACHINE = {
    "proc/stat": "cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 10 0 10 100 0 0 0 0 0 0\nintr 1\n",
    "proc/cpuinfo": "cpu MHz\t\t: 2450.000\n",
    "proc/meminfo": "MemTotal: 64000 kB\nMemFree: 1000 kB\nMemAvailable: 9000 kB\nBuffers: 10 kB\n"
    "Cached: 5000 kB\nActive: 7 kB\nInactive: 7 kB\nShmem: 70 kB\n"
    "SwapTotal: 900 kB\nSwapFree: 800 kB\n",
    "proc/vmstat": "pswpin 1\npswpout 2\npgfault 90\npgmajfault 3\n",
    "proc/diskstats": " 259 0 nvme0n1 5 0 8 1 6 0 16 1 0 7 2 0 0 0 0\n",
    "sys/block/nvme0n1/device/model": "disk\n",
    "proc/net/dev": "Inter-|\n face |\n  eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n",
    "sys/class/hwmon/hwmon0/name": "k10temp\n",
    "sys/class/hwmon/hwmon0/temp1_input": "61000\n",
}
MACHINE |= {
    f"proc/pressure/{resource}": "some avg10=1.00 avg60=0.00 avg300=0.00 total=5\n"
    for resource in ("cpu", "memory", "io")
}
JOB = {
    "cpu.max": "250000 100000\n",
    "cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 15\n",
    "memory.max": "32000000\n",
    "memory.current": "30000000\n",
    "memory.stat": "inactive_file 4000000\n",
    "memory.peak": "31000000\n",
    "memory.events": "oom_kill 2\n",
}
TRAINING = {
    "stat": f"{PID} (python) S 1 0 0 0 0 50 0 5 0 10 10 0 0 20 0 3 0 1000 9000 100 0 0\n",
    "statm": "900 100 0 0 0 0 0\n",
    "cmdline": "python\0train.py\0",
    "status": "Cpus_allowed_list:\t0-3\n",
    "cgroup": "0::/job\n",
    "mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "io": "syscw: 3\nread_bytes: 4096\nwrite_bytes: 512\n",
    f"task/{PID}/children": f"{PID + 1} ",
    "schedstat": "5000000 3000000 7\n",
    f"task/{PID}/schedstat": "5000000 3000000 7\n",
    f"task/{PID}/status": "voluntary_ctxt_switches:\t6\nnonvoluntary_ctxt_switches:\t2\n",
    "smaps_rollup": "Pss:  4 kB\n",
    "fd/0": "",
}
WORKER = f"{PID + 1} (pt_data_worker) S {PID} 0 0 0 0 50 0 5 0 1 1 0 0 20 0 3 0 1000 9000 9 0 0\n"
GPU = {
    "0.processes": f"{PID}:1073741824:4294967295:4294967295",
    "0.samples": f"{PID}:10:30:0:1:2",
    "0.field.29": "3 0",
    "0.field.30": "3 0",
    "0.field.31": "3 0",
}
SAID = ("ml.process.role", "hw.id", "hw.name", "hw.model", "otel_mlperf.sampler.name")
"""Labels of which another value is no further kind of series."""


def points(measurements):
    """What was measured: metric, and the labels that tell kinds of series apart."""
    return {
        (metric, *(pair for pair in sorted(labels.items()) if pair[0] not in SAID))
        for metric, labels in measurements
    }


def sensed(measurements):
    """The points of a sensor's pass."""
    return points((found.metric, found.labels) for found in measurements)


def amd_sensor(level="detailed", **given):
    """What the GPUs of AMD say, looked for as the agent does."""
    return DetectedVendor("amd", lambda: AMD, Surroundings(level, **given))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that gives everything, with a training process in a job that has limits."""
    write_files(tmp_path, MACHINE | {f"proc/{PID + 1}/stat": WORKER})
    write_files(tmp_path, {CGROUP + name: content for name, content in JOB.items()})
    write_files(tmp_path, {PROCESS + name: content for name, content in TRAINING.items()})
    for pid in (PID, PID + 1):
        (tmp_path / f"proc/{pid}/ns").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/ns/pid").symlink_to("pid:[4026531836]")
    (tmp_path / f"proc/{os.getpid()}").symlink_to("/proc/self")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    return tmp_path


@pytest.fixture
def amdsmi(tmp_path, monkeypatch):
    """A stand-in for the library of AMD GPUs, and its driver."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    shutil.copy(HERE / "amdsmi_stand_in.py", tmp_path / "modules/amdsmi.py")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield importlib.import_module("amdsmi")
    del sys.modules["amdsmi"]


def read_direct(machine, level):
    """By source what the agent's own sensors say in two passes, between which CPUs were busy."""
    options = Options(policy=Policy(), readings=level, sources=frozenset({"host", "process"}))
    made = this_machine(
        options, machine, lambda: {PID: (1, 2)}, proc=machine / "proc", sys=machine / "sys"
    )
    made.pids = frozenset({PID})
    found = {name: sensed(source.take()) for name, source in made.sources.items()}
    busy = {"proc/stat": MACHINE["proc/stat"].replace("10 0 10 100", "20 0 10 110")}
    write_files(machine, busy | {PROCESS + "stat": TRAINING["stat"]})
    for name, source in made.sources.items():
        found[name] |= sensed(source.take())
        source.close()
    write_files(machine, {"proc/stat": MACHINE["proc/stat"]})
    return found


def read_filesystem(machine):
    """What the thread for the disk says; how it went is the agent's own health."""
    sensor = TimedSensor("filesystem", FilesystemSensor(machine), deadline_s=60)
    found = sensed(sensor.read())
    sensor.close()
    return found


def read_gpus(machine, level, nvml_library):
    """What GPUs of both vendors say."""
    script = Script(machine / "gpus", 1)
    script.change(GPU)
    proc = machine / "proc"
    with Reader(script, nvml_library, level=level, pids=[PID], proc=str(proc)) as reader:
        passes = reader.ask("read")
        script.change({"event.0": "0 31"})
        passes += reader.ask("read")
    said = points((metric, labels) for metric, labels, *_ in passes)
    amd = amd_sensor(level=level, pids=lambda: [PID], proc=proc, sys=machine / "sys")
    said |= sensed(amd.read())
    amd.close()
    return said - health(said)


def health(said):
    """How the pass went, which is the agent's to say."""
    return {point for point in said if point[0].startswith("otel_mlperf.")}


FAKE_MPS = SimpleNamespace(current_allocated_memory=lambda: 5, driver_allocated_memory=lambda: 9)


def told(tmp_path, **settings):
    """What the training process registers to tell of itself."""
    with om.start("x", dir=tmp_path, agent="none", console=False, **settings) as run:
        recorder = run._recorder
        if recorder.config.reads("allocator"):
            account = Account(allocated=5, reserved=5, reserved_peak=9, device_allocations=1)
            Allocator(recorder, lambda: fake_torch(account)).look(0)
            MpsMemory(recorder, lambda: FAKE_MPS).look(0)
        entries = JournalReader(recorder.journal.path, recorder.journal.buffer).new_entries()
    cells = (entry for entry in entries.values() if entry[0] == "cell")
    return points((name, dict(labels)) for _, _, name, _, labels in cells)


def added(by_level):
    """Per level the metrics of points that the levels before do not have; empty levels left out."""
    found, before = {}, set()
    for level, said in by_level.items():
        if new := {metric for metric, *_ in said - before}:
            found[level] = new
        before |= said
    return found


def listed(source):
    """The same as the list of metrics has it."""
    return {level: {m.name for m in metrics} for level, metrics in SOURCES[source].items()}


def test_sensors_read_at_each_level_what_is_listed(machine):
    """Host, processes, the disk and the agent itself: neither a metric more nor one less."""
    found = {source: {} for source in ("host", "process", "filesystem", "agent")}
    for level in LEVELS:
        passes = read_direct(machine, level) | {"filesystem": read_filesystem(machine)}
        for source, said in passes.items():
            found[source][level] = found[source].get(level, set()) | said - health(said)
            found["agent"][level] = found["agent"].get(level, set()) | health(said)

    assert {source: added(levels) for source, levels in found.items()} == {
        source: listed(source) for source in found
    }


def test_gpus_say_at_each_level_what_is_listed(machine, amdsmi, nvml_library):
    """Those of both vendors together."""
    by_level = {level: read_gpus(machine, level, nvml_library) for level in LEVELS}

    assert added(by_level) == listed("gpu")


@pytest.mark.parametrize("source", ["gc", "allocator"])
def test_the_training_process_tells_of_itself_what_is_listed(tmp_path, source):
    """At any level but ``none``, where that source is not switched off."""
    others = [name for name in READING_SOURCES if name != source]
    at = {level: told(tmp_path, readings=level, disabled_readings=others) for level in LEVELS}
    nothing = told(tmp_path, readings="none") | told(tmp_path, disabled_readings=source)

    assert added(at) == listed(source)
    assert not {metric for metric, *_ in nothing} & listed(source)["basic"]


def test_sources_are_those_that_can_be_switched_off():
    """And the agent's own, which go with all readings."""
    assert tuple(SOURCES) == (*READING_SOURCES, "agent")
    assert all(set(levels) <= set(LEVELS) for levels in SOURCES.values())


def test_what_no_source_reads_is_of_the_run():
    """Every metric of host, hardware and processes has its source."""
    read = {metric for levels in SOURCES.values() for found in levels.values() for metric in found}
    for module in (names.host_and_process, names.device, names.runtime):
        assert {m for m in vars(module).values() if isinstance(m, names.Metric)} <= read


def test_intervals_are_those_of_the_page():
    """Five seconds, at the last level one."""
    at = {level: read_options({"OTEL_MLPERF_READINGS": level}).readings_s for level in LEVELS}
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()

    assert at == {"basic": 5, "detailed": 5, "comprehensive": 1}
    assert "made every 5 s, at level `comprehensive` every second" in page.replace("\n", " ")
