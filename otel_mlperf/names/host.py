"""Metrics of the machine, independent of the processes that run on it."""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import (
    CPU_MODE,
    CPU_NUMBER,
    DISK_DIRECTION,
    FILESYSTEM_STATE,
    MEMORY_STATE,
    MOUNTPOINT,
    NETWORK_DIRECTION,
    NETWORK_INTERFACE,
    PAGING_DIRECTION,
    PAGING_FAULT,
    PAGING_STATE,
    PSI_KIND,
    PSI_RESOURCE,
    SYSTEM_DEVICE,
)
from otel_mlperf.names.metric import Metric

SYSTEM_CPU_TIME: Final = Metric(
    "system.cpu.time",
    "s",
    "counter",
    "Time of all logical CPUs in each mode; of each of them where there is a number.",
    (CPU_MODE, CPU_NUMBER),
)
SYSTEM_CPU_UTILIZATION: Final = Metric(
    "system.cpu.utilization",
    "1",
    "gauge",
    "Share of the CPU time since the reading before; over the modes they add up to one.",
    (CPU_MODE,),
)
SYSTEM_CPU_FREQUENCY: Final = Metric(
    "system.cpu.frequency", "Hz", "gauge", "Frequency of the logical CPUs now, their mean."
)
SYSTEM_CPU_COUNT: Final = Metric(
    "system.cpu.logical.count", "{cpu}", "updowncounter", "Logical CPUs that are online."
)
LOAD_1M: Final = Metric(
    "linux.load_average.1m",
    "{thread}",
    "gauge",
    "Threads that run or wait for a CPU or a disk, mean of the last minute.",
)
LOAD_5M: Final = Metric(
    "linux.load_average.5m", "{thread}", "gauge", "The same over the last five minutes."
)
LOAD_15M: Final = Metric(
    "linux.load_average.15m", "{thread}", "gauge", "The same over the last fifteen minutes."
)
SYSTEM_MEMORY: Final = Metric(
    "system.memory.usage",
    "By",
    "updowncounter",
    "Memory of the host by state: used, free, buffers, cached (with reclaimable slabs).",
    (MEMORY_STATE,),
)
SYSTEM_MEMORY_LIMIT: Final = Metric(
    "system.memory.limit",
    "By",
    "updowncounter",
    "Memory of the host, whatever a container may use.",
)
SYSTEM_MEMORY_UTILIZATION: Final = Metric(
    "system.memory.utilization",
    "1",
    "gauge",
    "Share of the host's memory in the state ``used``.",
    (MEMORY_STATE,),
)
SYSTEM_MEMORY_AVAILABLE: Final = Metric(
    "system.memory.linux.available",
    "By",
    "updowncounter",
    "Memory that programs can still get without swapping, as the kernel estimates it.",
)
SYSTEM_MEMORY_SHARED: Final = Metric(
    "system.memory.linux.shared",
    "By",
    "updowncounter",
    "Shared memory and tmpfs: batches on their way from DataLoader workers lie here.",
)
PAGING_USAGE: Final = Metric(
    "system.paging.usage", "By", "updowncounter", "Swap by state: used, free.", (PAGING_STATE,)
)
PAGING_UTILIZATION: Final = Metric(
    "system.paging.utilization", "1", "gauge", "Share of the swap in use.", (PAGING_STATE,)
)
PAGING_FAULTS: Final = Metric(
    "system.paging.faults",
    "{fault}",
    "counter",
    "Page faults; a major one waited for a disk.",
    (PAGING_FAULT,),
)
PAGING_OPERATIONS: Final = Metric(
    "system.paging.operations",
    "{operation}",
    "counter",
    "Pages swapped in and out.",
    (PAGING_DIRECTION,),
)
DISK_IO: Final = Metric(
    "system.disk.io",
    "By",
    "counter",
    "Bytes read from and written to each real disk.",
    (SYSTEM_DEVICE, DISK_DIRECTION),
)
DISK_OPERATIONS: Final = Metric(
    "system.disk.operations",
    "{operation}",
    "counter",
    "Reads and writes of each real disk that are complete.",
    (SYSTEM_DEVICE, DISK_DIRECTION),
)
DISK_IO_TIME: Final = Metric(
    "system.disk.io_time",
    "s",
    "counter",
    "Time in which the disk had anything to do.",
    (SYSTEM_DEVICE,),
)
NETWORK_IO: Final = Metric(
    "system.network.io",
    "By",
    "counter",
    "Bytes received and transmitted by each interface, loopback left out.",
    (NETWORK_INTERFACE, NETWORK_DIRECTION),
)
NETWORK_PACKETS: Final = Metric(
    "system.network.packet.count",
    "{packet}",
    "counter",
    "Packets received and transmitted.",
    (NETWORK_INTERFACE, NETWORK_DIRECTION),
)
NETWORK_DROPPED: Final = Metric(
    "system.network.packet.dropped",
    "{packet}",
    "counter",
    "Packets dropped although nothing was wrong with them: a full queue, mostly.",
    (NETWORK_INTERFACE, NETWORK_DIRECTION),
)
NETWORK_ERRORS: Final = Metric(
    "system.network.errors",
    "{error}",
    "counter",
    "Errors in receiving and transmitting.",
    (NETWORK_INTERFACE, NETWORK_DIRECTION),
)
FILESYSTEM_USAGE: Final = Metric(
    "system.filesystem.usage",
    "By",
    "updowncounter",
    "Space of the disk that holds the run folder by state: used, free, reserved (for root).",
    (MOUNTPOINT, FILESYSTEM_STATE),
)
FILESYSTEM_LIMIT: Final = Metric(
    "system.filesystem.limit",
    "By",
    "updowncounter",
    "Size of the disk that holds the run folder.",
    (MOUNTPOINT,),
)
FILESYSTEM_UTILIZATION: Final = Metric(
    "system.filesystem.utilization",
    "1",
    "gauge",
    "Share of that disk in use, as ``df`` says it: used / (used + free).",
    (MOUNTPOINT,),
)
SYSTEM_UPTIME: Final = Metric("system.uptime", "s", "gauge", "Time since the host was started.")
PSI_TIME: Final = Metric(
    "linux.psi.stall.time",
    "s",
    "counter",
    "Time in which tasks of the host waited for the resource: cpu, memory, io.",
    (PSI_RESOURCE, PSI_KIND),
)
PSI_AVERAGE: Final = Metric(
    "linux.psi.stall.average",
    "1",
    "gauge",
    "Share of the last ten seconds in which they did.",
    (PSI_RESOURCE, PSI_KIND),
)
