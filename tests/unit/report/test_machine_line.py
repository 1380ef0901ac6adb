"""The machines of a run, and what was lost of them, are reported on their lines."""

from __future__ import annotations

import json

import pytest
from run_folders import MS, START, S, digits
from summaries import rendered

from otel_mlperf import names

GIB = 2**30


def reading(run, metric, values, labels=(), rank=None):
    """One row for each value, five seconds apart."""
    for i, value in enumerate(values):
        run.row(
            "readings", rank=rank, restart=0, name=metric.name, labels=json.dumps(dict(labels)),
            time_ns=START + i * 5 * S, value=value,
        )  # fmt: skip


def read_host(run, limits=(8, 8)):
    """Eight processors, 64 GiB."""
    reading(run, names.SYSTEM_CPU_COUNT, [8, 8])
    reading(run, names.SYSTEM_CPU_UTILIZATION, [0.5, 0.6], {names.CPU_MODE: "idle"})
    reading(run, names.SYSTEM_CPU_UTILIZATION, [0.03, 0.05], {names.CPU_MODE: "iowait"})
    reading(run, names.SYSTEM_CPU_UTILIZATION, [0.47, 0.35], {names.CPU_MODE: "user"})
    reading(run, names.SYSTEM_MEMORY_LIMIT, [64 * GIB] * 2)
    reading(run, names.SYSTEM_MEMORY_AVAILABLE, [51.7 * GIB, 60 * GIB])
    reading(run, names.CGROUP_CPU_LIMIT, limits, rank=0)
    reading(run, names.CGROUP_MEMORY_LIMIT, [64 * GIB] * 2, rank=0)


def read_gpu(run, number, busy, gib, degrees, rank=0):
    labels = {names.HW_ID: f"GPU-{number}", names.HW_NAME: f"gpu{number}"}
    task = {names.HW_GPU_TASK: "general"}
    reading(run, names.GPU_UTILIZATION, busy, labels | task, rank)
    reading(run, names.GPU_MEMORY_USAGE, [gib * GIB], labels, rank)
    place = {names.HW_SENSOR_LOCATION: "gpu"}
    reading(run, names.HW_TEMPERATURE, [degrees - 5, degrees], labels | place, rank)


def machine_line(run, monkeypatch, **options):
    lines = rendered(run, monkeypatch, **options).splitlines()
    return [line for line in lines if line.startswith("machine")]


@pytest.mark.parametrize(
    ("unicode", "expected"),
    [
        (True, "machine   CPU 41 % of 8, memory 12.3 of 64.0 GiB · GPU 0: 87 %, 61.0 GiB, 62 °C"),
        (False, "machine   CPU 41 % of 8, memory 12.3 of 64.0 GiB - GPU 0: 87 %, 61.0 GiB, 62 C"),
    ],
)
def test_the_machine_on_one_line(runs, monkeypatch, unicode, expected):
    """Means of the busy shares, the most of memory and heat: of the host and of the GPU."""
    run = digits(runs)
    read_host(run)
    read_gpu(run, 0, [0.8, 0.94], 61, 62)

    assert machine_line(run, monkeypatch, unicode=unicode) == [expected]


def test_many_gpus_are_a_range(runs, monkeypatch):
    """The least and the most busy, the fullest and the hottest, whichever ranks they are of."""
    run = digits(runs)
    read_host(run)
    for number in range(8):
        read_gpu(run, number, [0.9 - number / 100], 60 + number, 70 + number, rank=number)

    assert machine_line(run, monkeypatch, width=100) == [
        "machine   CPU 41 % of 8, memory 12.3 of 64.0 GiB · 8 GPUs: 83–90 %, ≤ 67.0 GiB, ≤ 77 °C"
    ]


@pytest.mark.parametrize("width", [60, 70, 100, 200])
def test_a_narrow_terminal_gets_all_of_it_on_more_lines(runs, monkeypatch, width):
    """GPUs are never left out for want of room."""
    run = digits(runs)
    read_host(run)
    for number in range(8):
        read_gpu(run, number, [0.9 - number / 100], 60 + number, 70 + number, rank=number)

    lines = rendered(run, monkeypatch, width=width).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("machine"))
    host, gpus = "CPU 41 % of 8, memory 12.3 of 64.0 GiB", "8 GPUs: 83–90 %, ≤ 67.0 GiB, ≤ 77 °C"
    if width < 85:
        assert lines[at : at + 2] == [f"machine   {host} ·", f"          {gpus}"]
    else:
        assert lines[at] == f"machine   {host} · {gpus}"


def test_container_is_measured_by_what_it_may_use(runs, monkeypatch):
    """The processors and the memory of its limits, not those of the host."""
    run = digits(runs)
    read_host(run, [2.5, 2.5])
    reading(run, names.CGROUP_MEMORY_LIMIT, [16 * GIB], rank=0)
    reading(run, names.CGROUP_WORKING_SET, [3 * GIB, 2 * GIB], rank=0)
    reading(run, names.PROCESS_CPU_UTILIZATION, [0.5, 0.5], {names.PROCESS_ROLE: "main"}, rank=0)
    reading(run, names.PROCESS_CPU_UTILIZATION, [0.2, 0.2], {names.PROCESS_ROLE: "worker"}, rank=0)

    assert machine_line(run, monkeypatch) == ["machine   CPU 70 % of 2.5, memory 3.00 of 16.0 GiB"]


def test_what_was_not_read_is_not_on_the_line(runs, monkeypatch):
    """A run too short for a share of the CPU has no such line, a GPU without heat no degrees."""
    without, with_gpu = digits(runs / "without"), digits(runs / "with")
    gpu = {names.HW_ID: "GPU-0", names.HW_NAME: "gpu0"}
    for run in (without, with_gpu):
        reading(run, names.SYSTEM_CPU_COUNT, [8])
    reading(with_gpu, names.GPU_UTILIZATION, [0.5], gpu, 0)

    assert machine_line(without, monkeypatch) == []
    assert machine_line(with_gpu, monkeypatch) == ["machine   GPU 0: 50 %"]


def lose(run, name, at, gpu, why="", rank=0):
    attributes = {names.HW_ID: f"GPU-{gpu}", names.HW_NAME: f"gpu{gpu}"}
    attributes |= {names.EXCEPTION_MESSAGE: why} if why else {}
    text = json.dumps(attributes)
    run.span(0, name, at, 0, category=names.DEVICE, attributes=text, rank=rank)


def test_gpus_that_were_lost_are_named(runs, monkeypatch):
    """When first, how often, for how long, and what the driver said."""
    run = digits(runs)
    lose(run, names.SPAN_DEVICE_LOST, 1000 * MS, 0, "GPU is lost")
    lose(run, names.SPAN_DEVICE_BACK, 1200 * MS, 0)
    lose(run, names.SPAN_DEVICE_LOST, 1500 * MS, 0, "GPU is lost")
    lose(run, names.SPAN_DEVICE_LOST, 1600 * MS, 1, "Timeout")
    lose(run, names.SPAN_DEVICE_BACK, 1850 * MS, 0)

    lines = rendered(run, monkeypatch).splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("lost"))
    assert lines[first : first + 2] == [
        "lost      gpu0, 2 times, first after 1.00 s, back after 350 ms: GPU is lost",
        "          gpu1 after 1.60 s, not back yet: Timeout",
    ]


def test_one_odd_reading_says_nothing_of_the_cpus(runs, monkeypatch):
    """That of the set-up alone, say; what was in use of the memory was in use."""
    run = digits(runs)
    read_host(run, [2.5, 2.5])
    reading(run, names.PROCESS_CPU_UTILIZATION, [0.15], {names.PROCESS_ROLE: "main"}, rank=0)

    (line,) = machine_line(run, monkeypatch)

    assert "GiB" in line
    assert "cpu" not in line


def test_a_reading_counts_for_its_time(runs, monkeypatch):
    """Ten readings of half a second with all CPUs busy are five of the twenty seconds."""
    run = digits(runs)
    reading(run, names.SYSTEM_CPU_COUNT, [8, 8])
    idle = [(n / 2, 0.0) for n in range(1, 11)] + [(10, 1.0), (15, 1.0), (20, 1.0)]
    for at_s, value in idle:
        run.row(
            "readings", rank=None, restart=0, name=names.SYSTEM_CPU_UTILIZATION.name,
            labels=json.dumps({names.CPU_MODE: "idle"}),
            time_ns=START + int(at_s * S), value=value,
        )  # fmt: skip

    assert machine_line(run, monkeypatch) == ["machine   CPU 25 % of 8"]


def test_a_limit_that_held_for_a_moment_is_none_of_the_run(runs, monkeypatch):
    """A process may be pinned to one CPU while it starts; later it may use all of the machine."""
    run = digits(runs)
    read_host(run, [1, 8])
    reading(run, names.PROCESS_CPU_UTILIZATION, [0.03, 0.03], {names.PROCESS_ROLE: "main"}, rank=0)

    (line,) = machine_line(run, monkeypatch)

    assert line.startswith("machine   CPU 41 % of 8")
