"""A program gets what the agent has read, unchanged, with its age."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.bulletin import Group, Reading, RunWarning, drop_readings, write_readings
from otel_mlperf.recorder.api.readings import HostReadings, ProcessReadings, Readings

GPU0, GPU1 = ({names.HW_ID: f"GPU-{n}", names.HW_NAME: f"gpu{n}"} for n in range(2))


@pytest.fixture
def board(recording):
    """The folder of the journals, and the name of the run's own."""
    folder, own = os.path.split(recording.journal.path)
    yield folder, own
    drop_readings(folder)


def role(name):
    return {names.PROCESS_ROLE: name}


def test_readings(board):
    """Process, workers, limits, host and GPUs have what was read of them."""
    folder, own = board
    ago_s = time.monotonic() - 2

    def group(*found, older_s=0):
        of = [
            Reading(journal, metric.name, labels, value) for journal, metric, labels, value in found
        ]
        return Group(int((ago_s - older_s) * 1e9), of)

    process = group(
        ("other", names.PROCESS_MEMORY, role("main"), 1.0),
        (own, names.PROCESS_MEMORY, role("main"), 100.0),
        (own, names.PROCESS_MEMORY, role("worker"), 50.0),
        (own, names.PROCESS_CPU_UTILIZATION, role("main"), 0.25),
        (own, names.CGROUP_WORKING_SET, {}, 180.0),
        (own, names.CGROUP_MEMORY_LIMIT, {}, 200.0),
        (own, names.CGROUP_CPU_LIMIT, {}, 2.5),
    )
    host = group(
        ("", names.SYSTEM_CPU_UTILIZATION, {names.CPU_MODE: "idle"}, 0.5),
        ("", names.SYSTEM_CPU_UTILIZATION, {names.CPU_MODE: "iowait"}, 0.125),
        ("", names.SYSTEM_CPU_UTILIZATION, {names.CPU_MODE: "user"}, 0.375),
        ("", names.SYSTEM_MEMORY_LIMIT, {}, 1000.0),
        older_s=8,
    )
    gpu = group(
        ("other", names.GPU_MEMORY_LIMIT, GPU0, 80.0),
        (own, names.GPU_MEMORY_LIMIT, GPU1, 80.0),
        (own, names.GPU_MEMORY_USAGE, GPU1, 60.0),
        ("other", names.GPU_MEMORY_USAGE, GPU0, 10.0),
        (own, names.GPU_UTILIZATION, GPU1 | {names.HW_GPU_TASK: "encoder"}, 0.1),
        (own, names.GPU_UTILIZATION, GPU1 | {names.HW_GPU_TASK: "general"}, 0.9),
        (own, names.HW_POWER, GPU1 | {names.HW_TYPE: "gpu"}, 300.0),
        (own, names.HW_TEMPERATURE, GPU1 | {names.HW_SENSOR_LOCATION: "gpu"}, 70.0),
    )
    write_readings(folder, {"process": process, "host": host, "gpu": gpu}, [])
    found = om.readings()

    most_s = time.monotonic() - ago_s
    assert 10 <= found.age_s <= most_s + 8
    assert (found.process.memory_bytes, found.process.workers_memory_bytes) == (100, 50)
    assert (found.process.cpu_ratio, found.process.workers_cpu_ratio) == (0.25, None)
    assert (found.process.job_memory_bytes, found.process.memory_limit_bytes) == (180, 200)
    assert found.process.cpu_limit == 2.5
    assert 2 <= found.process.age_s <= most_s
    assert (found.host.cpu_ratio, found.host.memory_available_bytes) == (0.375, None)
    assert found.host.memory_limit_bytes == 1000
    assert [(gpu.name, gpu.is_own, gpu.memory_bytes) for gpu in found.gpus] == [
        ("gpu0", False, 10),
        ("gpu1", True, 60),
    ]
    one = found.gpus[1]
    assert (one.utilization_ratio, one.power_watts, one.temperature_celsius) == (0.9, 300, 70)
    assert found.gpus[0].power_watts is None


def test_disks_and_network_are_rates(board):
    """Between the last two readings: of bytes the sum, of disks the busiest; else unknown."""
    folder, _ = board
    now_ns = time.monotonic_ns()
    disks = [{names.SYSTEM_DEVICE: name} for name in ("sda", "sdb")]

    def totals(read, busy, received):
        sums = [
            *((names.DISK_IO, d | {names.DISK_DIRECTION: "read"}, read) for d in disks),
            *((names.DISK_IO_TIME, d, s) for d, s in zip(disks, busy, strict=True)),
            (names.NETWORK_IO, {names.NETWORK_DIRECTION: "receive"}, received),
        ]
        return [Reading("", metric.name, labels, value) for metric, labels, value in sums]

    stall = {names.PSI_RESOURCE: "io", names.PSI_KIND: "some"}
    now = [*totals(5000.0, (2.0, 1.5), 10.0), Reading("", names.PSI_AVERAGE.name, stall, 0.25)]
    before = totals(1000.0, (1.0, 1.0), 50.0)
    write_readings(folder, {"host": Group(now_ns, now, now_ns - 2 * 10**9, before)}, [])
    found = om.readings().host
    write_readings(folder, {"host": Group(now_ns, now)}, [])
    first = om.readings().host

    assert (found.disk_busy_ratio, found.disk_read_bytes_per_s) == (0.5, 4000)
    assert found.network_received_bytes_per_s == 0  # the driver was loaded anew
    assert (found.disk_written_bytes_per_s, found.network_sent_bytes_per_s) == (None, None)
    assert found.io_stall_ratio == first.io_stall_ratio == 0.25
    assert (first.disk_busy_ratio, first.disk_read_bytes_per_s) == (None, None)


def test_gpus_that_samplers_read_are_there_too(board):
    """Those that the agent cannot see follow its own, each as old as its source."""
    folder, own = board
    ago_ns = time.monotonic_ns() - 2 * 10**9

    def limit(device, journal, older_s):
        reading = Reading(journal, names.GPU_MEMORY_LIMIT.name, device, 80.0)
        return Group(ago_ns - older_s * 10**9, [reading])

    groups = {"gpu": limit(GPU0, "other", 0), "task_gpus": limit(GPU1, own, 10)}
    write_readings(folder, groups, [])
    first, second = om.readings().gpus

    assert (first.id, first.is_own, second.id, second.is_own) == ("GPU-0", False, "GPU-1", True)
    assert 2 <= first.age_s <= (time.monotonic_ns() - ago_ns) / 1e9
    assert second.age_s == pytest.approx(first.age_s + 10)


def test_warnings_of_this_rank_and_the_node(board):
    """Warnings of other ranks are theirs."""
    folder, own = board
    warnings = [RunWarning(rule, journal, {}, 1, 0, rule, "do") for rule, journal in
                (("A", own), ("B", ""), ("C", "other"))]  # fmt: skip
    write_readings(folder, {}, warnings)

    assert [one.rule for one in om.readings().warnings] == ["A", "B"]


def test_nothing_was_read(recording):
    """Without an agent, or without a run, there is nothing, and no age."""
    nothing = Readings(None, ProcessReadings(), HostReadings(), (), ())

    assert om.readings() == nothing
    om.stop()
    assert om.readings() == nothing


def values_of(part):
    """Every value of a part, its age too."""
    return [getattr(part, field.name) for field in dataclasses.fields(part)]


def test_every_part_can_be_asked_before_the_first_reading(recording):
    """Each attribute of each part is there, and None: a loop that looks at one goes on."""
    found = om.readings()

    assert found.age_s is None
    assert values_of(found.process) == [None] * 8
    assert values_of(found.host) == [None] * 10
    assert (found.gpus, found.warnings) == ((), ())


def test_a_source_that_is_off_says_so(board):
    """What another source said does not give it an age."""
    folder, own = board
    memory = Reading(own, names.PROCESS_MEMORY.name, role("main"), 100.0)
    read_ns = time.monotonic_ns()
    write_readings(folder, {"process": Group(read_ns, [memory])}, [])
    found = om.readings()

    assert found.process.memory_bytes == 100
    assert 0 <= found.process.age_s <= (time.monotonic_ns() - read_ns) / 1e9
    assert values_of(found.host) == [None] * 10


def test_what_was_read_of_other_ranks_is_no_reading_of_this_one(board):
    """A rank that joined since the last reading has no age yet."""
    memory = Reading("other", names.PROCESS_MEMORY.name, role("main"), 100.0)
    write_readings(board[0], {"process": Group(time.monotonic_ns(), [memory])}, [])

    assert values_of(om.readings().process) == [None] * 8
