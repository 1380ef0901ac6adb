"""The public call ``readings``, which returns the agent's latest readings.

They are read from a file that the agent updates next to the journals.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.lifecycle.warning_watch import of_rank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.journal.bulletin import Group, RunWarning
    from otel_mlperf.names import Metric
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_IDLE = ("idle", "iowait")
_MAIN = {names.PROCESS_ROLE: "main"}
_RECEIVED = {names.NETWORK_DIRECTION: "receive"}
_SENT = {names.NETWORK_DIRECTION: "transmit"}
_WORKERS = {names.PROCESS_ROLE: "worker"}


@dataclass(frozen=True, slots=True)
class ProcessReadings:
    """Readings of this process and its DataLoader workers; None: not read yet, or unreadable."""

    age_s: float | None = None
    """Age of the readings; None: not read yet, and all other values are None, too."""
    memory_bytes: int | None = None
    """Resident memory of the process."""
    workers_memory_bytes: int | None = None
    """Sum of the resident memory of its workers; shared pages are counted for each worker."""
    cpu_ratio: float | None = None
    """CPU time of the process / (elapsed time × CPUs that it may use)."""
    workers_cpu_ratio: float | None = None
    job_memory_bytes: int | None = None
    """Memory of its control group (container or job) that counts toward the limit."""
    memory_limit_bytes: int | None = None
    """Memory limit: the minimum of the host's memory and the limits of its control groups."""
    cpu_limit: float | None = None
    """Number of CPUs that the process may use."""


@dataclass(frozen=True, slots=True)
class HostReadings:
    """Readings of the host; None: not read yet, or unreadable."""

    age_s: float | None = None
    """Age of the readings; None: not read yet."""
    cpu_ratio: float | None = None
    """Busy share of the time of all CPUs."""
    memory_available_bytes: int | None = None
    memory_limit_bytes: int | None = None
    disk_busy_ratio: float | None = None
    """Share of the time between the last two readings in which the busiest disk was active."""
    disk_read_bytes_per_s: float | None = None
    """Sum over all physical disks, between the last two readings."""
    disk_written_bytes_per_s: float | None = None
    network_received_bytes_per_s: float | None = None
    """Sum over all interfaces except loopback, between the last two readings."""
    network_sent_bytes_per_s: float | None = None
    io_stall_ratio: float | None = None
    """Share of the last 10 s in which at least one task on the host waited for a disk."""


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """Readings of one GPU or MIG instance; None: the device does not provide the value."""

    age_s: float
    id: str
    """UUID of the device."""
    name: str
    """``gpu0``, …: numbered in the order of the PCI bus."""
    is_own: bool
    """Whether this rank is known to use the device."""
    utilization_ratio: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None


_NO_PROCESS, _NO_HOST = ProcessReadings(), HostReadings()


@dataclass(frozen=True, slots=True)
class Readings:
    """Latest readings of the agent; parts that have not been read yet contain only None."""

    age_s: float | None = None
    """Age of the oldest part; None: nothing has been read yet."""
    process: ProcessReadings = _NO_PROCESS
    host: HostReadings = _NO_HOST
    gpus: tuple[GpuReadings, ...] = ()
    """Readings of GPUs; empty before the first reading and without GPUs."""
    warnings: tuple[RunWarning, ...] = ()
    """Current warnings of the agent, for this rank and for the node."""


def readings() -> Readings:
    """Return the agent's latest readings: memory and CPU of process and workers, host, GPUs.

    Each part is a few seconds old (``age_s``). If a part has not been read yet, or is never read
    (no run, or a disabled source), its ``age_s`` and all its values are None. The call costs 0.2 ms
    and reads no sensor.
    """
    try:
        recorder = active()
        if recorder is not None:
            return _read(recorder)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
    return Readings()


def _read(recorder: Recorder) -> Readings:
    from otel_mlperf.journal import bulletin as file

    folder, own = os.path.split(recorder.journal.path)
    published = file.read_readings(folder)
    if published is None:
        return Readings()
    now_ns = time.monotonic_ns()
    ages = {
        source: max(0.0, (now_ns - group.monotonic_ns) / 1e9)
        for source, group in published.groups.items()
    }
    read = {source: _Values(group, own) for source, group in published.groups.items()}
    # Omit sources that have only readings of other ranks.
    values = {
        source: source_values for source, source_values in read.items() if source_values.readings
    }
    gpus = [source for source in (file.GPUS, file.TASK_GPUS) if source in published.groups]
    return Readings(
        max(ages.values(), default=None),
        _process(values["process"], ages["process"]) if "process" in values else _NO_PROCESS,
        _host(values["host"], ages["host"]) if "host" in values else _NO_HOST,
        tuple(gpu for source in gpus for gpu in _gpus(published.groups[source], own, ages[source])),
        tuple(of_rank(own, published.warnings)),
    )


class _Values:
    """Values of one source.

    Args:
        group: the readings of the source.
        own: journal of the rank whose readings, with those of the node, are used; None: all.
    """

    def __init__(self, group: Group, own: str | None) -> None:
        self.readings = group.readings if own is None else of_rank(own, group.readings)
        self._group = group

    def of(self, metric: Metric, labels: dict[str, str] | None = None) -> float | None:
        """Return the value of the first series that has ``labels``, or None."""
        wanted = (labels or {}).items()
        values = (
            reading.value
            for reading in self.readings
            if reading.metric == metric.name and wanted <= reading.labels.items()
        )
        return next(values, None)

    def rates(self, metric: Metric, labels: dict[str, str] | None = None) -> list[float]:
        """Return the growth per second of a metric's series that have ``labels``.

        It is computed between the last two readings; new series are omitted.
        """
        group, wanted = self._group, (labels or {}).items()
        passed_s = (group.monotonic_ns - group.before_ns) / 1e9
        before = {
            tuple(sorted(reading.labels.items())): reading.value
            for reading in group.before
            if reading.metric == metric.name
        }
        return [
            max(0.0, reading.value - before[key]) / passed_s  # 0 if a driver has reset the total
            for reading in self.readings
            if reading.metric == metric.name and wanted <= reading.labels.items() and passed_s > 0
            if (key := tuple(sorted(reading.labels.items()))) in before
        ]

    def rate(self, metric: Metric, labels: dict[str, str]) -> float | None:
        """Return the sum of ``rates``; None if there are none."""
        rates = self.rates(metric, labels)
        return sum(rates) if rates else None

    def whole(self, metric: Metric, labels: dict[str, str] | None = None) -> int | None:
        """Return the value of the first series that has ``labels`` as an integer, or None."""
        value = self.of(metric, labels)
        return None if value is None else int(value)


def _process(values: _Values, age_s: float) -> ProcessReadings:
    return ProcessReadings(
        age_s=age_s,
        memory_bytes=values.whole(names.PROCESS_MEMORY, _MAIN),
        workers_memory_bytes=values.whole(names.PROCESS_MEMORY, _WORKERS),
        cpu_ratio=values.of(names.PROCESS_CPU_UTILIZATION, _MAIN),
        workers_cpu_ratio=values.of(names.PROCESS_CPU_UTILIZATION, _WORKERS),
        job_memory_bytes=values.whole(names.CGROUP_WORKING_SET),
        memory_limit_bytes=values.whole(names.CGROUP_MEMORY_LIMIT),
        cpu_limit=values.of(names.CGROUP_CPU_LIMIT),
    )


def _host(values: _Values, age_s: float) -> HostReadings:
    idle = [
        share
        for mode in _IDLE
        if (share := values.of(names.SYSTEM_CPU_UTILIZATION, {names.CPU_MODE: mode})) is not None
    ]
    return HostReadings(
        age_s=age_s,
        cpu_ratio=max(0.0, 1 - sum(idle)) if idle else None,
        memory_available_bytes=values.whole(names.SYSTEM_MEMORY_AVAILABLE),
        memory_limit_bytes=values.whole(names.SYSTEM_MEMORY_LIMIT),
        disk_busy_ratio=max((min(1.0, r) for r in values.rates(names.DISK_IO_TIME)), default=None),
        disk_read_bytes_per_s=values.rate(names.DISK_IO, {names.DISK_DIRECTION: "read"}),
        disk_written_bytes_per_s=values.rate(names.DISK_IO, {names.DISK_DIRECTION: "write"}),
        network_received_bytes_per_s=values.rate(names.NETWORK_IO, _RECEIVED),
        network_sent_bytes_per_s=values.rate(names.NETWORK_IO, _SENT),
        io_stall_ratio=values.of(
            names.PSI_AVERAGE, {names.PSI_RESOURCE: "io", names.PSI_KIND: "some"}
        ),
    )


def _gpus(group: Group, own: str, age_s: float) -> Iterable[GpuReadings]:
    """Yield the readings of each device that reports its memory limit, in the agent's order."""
    values = _Values(group, None)
    for reading in group.readings:
        if reading.metric != names.GPU_MEMORY_LIMIT.name:
            continue
        device = {names.HW_ID: reading.labels[names.HW_ID]}
        yield GpuReadings(
            age_s=age_s,
            id=device[names.HW_ID],
            name=reading.labels.get(names.HW_NAME, ""),
            is_own=reading.journal == own,
            utilization_ratio=values.of(
                names.GPU_UTILIZATION, {**device, names.HW_GPU_TASK: names.TASK_GENERAL}
            ),
            memory_bytes=values.whole(names.GPU_MEMORY_USAGE, device),
            memory_limit_bytes=int(reading.value),
            power_watts=values.of(names.HW_POWER, device),
            temperature_celsius=values.of(
                names.HW_TEMPERATURE, {**device, names.HW_SENSOR_LOCATION: "gpu"}
            ),
        )
