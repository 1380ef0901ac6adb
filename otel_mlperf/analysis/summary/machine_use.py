"""Utilization of CPUs, memory and GPUs by a run's machines and processes, and lost devices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.summary.summary_shapes import GpuUse, Loss, MachineUse, ProcessUse

if TYPE_CHECKING:
    from otel_mlperf.analysis.run.run_processes import Processes
    from otel_mlperf.store.table_reader import Store

_IDLE = ("idle", "iowait")
_MIN_READINGS = 2
# Readings are weighted with the time since the previous one: the first seconds have more of them.
_READ = """WITH read AS (
    SELECT name, labels, rank, time_ns, value, greatest(1, coalesce(
        time_ns - lag(time_ns) OVER series, lead(time_ns) OVER series - time_ns, 1)) AS held_ns
    FROM readings WHERE name IN (SELECT unnest($names))
    WINDOW series AS (PARTITION BY name, labels, rank, restart ORDER BY time_ns))
SELECT name, labels, sum(value * held_ns) / sum(held_ns), min(value), max(value),
    count(DISTINCT rank), count(DISTINCT time_ns)
FROM read GROUP BY name, labels"""


class _Read(NamedTuple):
    """Statistics of all readings of one metric with the same labels, over all ranks."""

    labels: dict[str, str]
    mean: float
    least: float
    most: float
    ranks: int
    times: int


_Found = dict[str, list[_Read]]


def read_machine(store: Store) -> MachineUse | None:
    """Return the use of the run's machines; None if CPUs and GPUs have no readings.

    - CPU: the mean over time of 1 - idle - iowait, from at least two readings. In a container that
      is limited to some of the CPUs: the rank's use of these CPUs, or None with several ranks,
      because it is unknown whether they share the CPUs.
    - Memory: the peak of total - available. In a container with a lower limit: the largest working
      set.
    """
    readings = _read(store)
    gpus = _gpus(readings)
    cpus, share = _cpu(readings)
    used, total = _memory(readings)
    if share is None and not gpus:
        return None
    # A single CPU reading, such as one during set-up, is not representative: it is ignored.
    _, share = _cpu(_repeated(readings))
    return MachineUse(
        cpus=cpus, cpu_share=share, memory_bytes=used, memory_limit_bytes=total, gpus=gpus
    )


def _read(store: Store) -> _Found:
    rows = store.rows(_READ, names=[metric.name for metric in _METRICS])
    readings: _Found = {}
    for name, labels, *values in rows:
        readings.setdefault(name, []).append(_Read(json.loads(labels), *values))
    return readings


_METRICS = (
    names.SYSTEM_CPU_UTILIZATION,
    names.SYSTEM_CPU_COUNT,
    names.SYSTEM_MEMORY_LIMIT,
    names.SYSTEM_MEMORY_AVAILABLE,
    names.CGROUP_CPU_LIMIT,
    names.CGROUP_MEMORY_LIMIT,
    names.CGROUP_WORKING_SET,
    names.PROCESS_CPU_UTILIZATION,
    names.GPU_UTILIZATION,
    names.GPU_MEMORY_USAGE,
    names.HW_TEMPERATURE,
)


def _one(readings: _Found, metric: names.Metric) -> _Read | None:
    return next(iter(readings.get(metric.name, ())), None)


def _cpu(readings: _Found) -> tuple[float | None, float | None]:
    count, limit = _one(readings, names.SYSTEM_CPU_COUNT), _one(readings, names.CGROUP_CPU_LIMIT)
    # A container is judged by its own limit: the host's share would include other containers. The
    # highest limit counts: at the start the process may be pinned to one CPU temporarily.
    if limit and (count is None or limit.most < count.most):
        of_processes = readings.get(names.PROCESS_CPU_UTILIZATION.name)
        is_known = of_processes and limit.ranks == 1
        return limit.most, sum(reading.mean for reading in of_processes or ()) if is_known else None
    idle = [
        reading.mean
        for reading in readings.get(names.SYSTEM_CPU_UTILIZATION.name, ())
        if reading.labels.get(names.CPU_MODE) in _IDLE
    ]
    return count.most if count else None, max(0.0, 1 - sum(idle)) if idle else None


def _repeated(readings: _Found) -> _Found:
    shares = (names.SYSTEM_CPU_UTILIZATION.name, names.PROCESS_CPU_UTILIZATION.name)
    return {
        name: of
        for name, of in readings.items()
        if name not in shares or max(one.times for one in of) >= _MIN_READINGS
    }


def _memory(readings: _Found) -> tuple[float | None, float | None]:
    total, limit = (
        _one(readings, names.SYSTEM_MEMORY_LIMIT),
        _one(readings, names.CGROUP_MEMORY_LIMIT),
    )
    if limit and (total is None or limit.least < total.most):
        used = _one(readings, names.CGROUP_WORKING_SET)
        return used and used.most, limit.least
    free = _one(readings, names.SYSTEM_MEMORY_AVAILABLE)
    return (total.most - free.least, total.most) if total and free else (None, None)


def _gpus(readings: _Found) -> list[GpuUse]:
    busy = _by_gpu(readings, names.GPU_UTILIZATION)
    memory = _by_gpu(readings, names.GPU_MEMORY_USAGE)
    heat = _by_gpu(readings, names.HW_TEMPERATURE)
    return [
        GpuUse(
            id=gpu[2],
            name=gpu[1],
            busy_share=busy[gpu].mean if gpu in busy else None,
            memory_bytes=memory[gpu].most if gpu in memory else None,
            temperature_c=heat[gpu].most if gpu in heat else None,
        )
        for gpu in sorted({*busy, *memory, *heat})
    ]


def _by_gpu(readings: _Found, metric: names.Metric) -> dict[tuple[int, str, str], _Read]:
    return {
        # The length of the name sorts gpu2 before gpu10.
        (len(name), name, reading.labels[names.HW_ID]): reading
        for reading in readings.get(metric.name, ())
        if (name := reading.labels.get(names.HW_NAME, "")).startswith("gpu")
        and names.HW_PARENT not in reading.labels
        and reading.labels.get(names.HW_GPU_TASK, names.TASK_GENERAL) == names.TASK_GENERAL
        and reading.labels.get(names.HW_SENSOR_LOCATION) != "memory"
    }


def read_process_use(store: Store, processes: Processes) -> ProcessUse | None:
    """Return the resource use that the training processes reported; None: nothing was reported."""
    rows = store.rows(
        "SELECT name, rank, restart, max(value) FROM readings "
        "WHERE name IN ($cpu, $peak) OR (name = $cuda AND contains(labels, $allocated)) "
        "OR (name = $resident AND contains(labels, $worker)) "
        "GROUP BY name, rank, restart",
        cpu=names.RUN_CPU.name,
        peak=names.RUN_MEMORY_PEAK.name,
        cuda=names.CUDA_MEMORY_PEAK_USAGE.name,
        allocated=json.dumps({names.CUDA_MEMORY_STATE: "allocated"})[1:-1],
        resident=names.PROCESS_MEMORY.name,
        worker=json.dumps({names.PROCESS_ROLE: "worker"})[1:-1],
    )
    cpu_s = {(rank, restart): s for name, rank, restart, s in rows if name == names.RUN_CPU.name}
    peaks = [value for name, _, _, value in rows if name == names.RUN_MEMORY_PEAK.name]
    cuda = [value for name, _, _, value in rows if name == names.CUDA_MEMORY_PEAK_USAGE.name]
    workers = [value for name, _, _, value in rows if name == names.PROCESS_MEMORY.name]
    # Only processes that reported their CPU time: the use of other processes is unknown.
    lives = (
        processes.end_of(process) - process.start_ns
        for process in processes.all
        if (process.rank, process.restart) in cpu_s
    )
    life_s = sum(lives) / 1e9
    if not peaks or not life_s:
        return None
    return ProcessUse(
        cpus=sum(cpu_s.values()) / life_s,
        memory_peak_bytes=int(max(peaks)),
        workers_peak_bytes=int(max(workers)) if workers else None,
        cuda_peak_bytes=int(max(cuda)) if cuda else None,
    )


def read_losses(store: Store, started_ns: int) -> list[Loss]:
    """Return each lost device, in the order of its first loss."""
    rows = store.rows(
        "SELECT rank, name, start_ns, attributes FROM spans WHERE category = $category "
        "ORDER BY start_ns",
        category=names.DEVICE,
    )
    of_device: dict[str, list[tuple[int, str, int, dict[str, Any]]]] = {}
    for rank, name, time_ns, text in rows:
        attributes = json.loads(text)
        moment = (rank, name, time_ns, attributes)
        of_device.setdefault(attributes[names.HW_ID], []).append(moment)
    losses = (_loss(device, moments, started_ns) for device, moments in of_device.items())
    return [loss for loss in losses if loss is not None]


def _loss(
    device: str, moments: list[tuple[int, str, int, dict[str, Any]]], started_ns: int
) -> Loss | None:
    lost = [moment for moment in moments if moment[1] == names.SPAN_DEVICE_LOST]
    if not lost:
        return None
    rank, _, first_ns, attributes = lost[0]
    last_ns = lost[-1][2]
    back = (time_ns for _, name, time_ns, _ in moments if name == names.SPAN_DEVICE_BACK)
    return Loss(
        id=device,
        name=attributes.get(names.HW_NAME, ""),
        rank=rank,
        count=len(lost),
        after_ns=max(0, first_ns - started_ns),
        absent_ns=next((time_ns - last_ns for time_ns in back if time_ns >= last_ns), None),
        text=attributes.get(names.EXCEPTION_MESSAGE, ""),
    )
