"""Metrics of the machine, of the processes of a run, and of their control group."""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import (
    CONTEXT_SWITCH,
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
    PROCESS_ROLE,
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

PROCESS_CPU_TIME: Final = Metric(
    "process.cpu.time",
    "s",
    "counter",
    "CPU time; children that ended count with what they had used when last read, "
    "and with the rest under ended.",
    (CPU_MODE, PROCESS_ROLE),
)
PROCESS_CPU_UTILIZATION: Final = Metric(
    "process.cpu.utilization",
    "1",
    "gauge",
    "CPU time since the reading before / (elapsed time x CPUs that the process may use).",
    (PROCESS_ROLE,),
)
PROCESS_MEMORY: Final = Metric(
    "process.memory.usage",
    "By",
    "updowncounter",
    "Resident memory; pages that processes share count in each of them.",
    (PROCESS_ROLE,),
)
PROCESS_MEMORY_VIRTUAL: Final = Metric(
    "process.memory.virtual", "By", "updowncounter", "Virtual memory.", (PROCESS_ROLE,)
)
PROCESS_MEMORY_UTILIZATION: Final = Metric(
    "process.memory.utilization",
    "1",
    "gauge",
    "Resident memory as a share of the host's.",
    (PROCESS_ROLE,),
)
PROCESS_MEMORY_PSS: Final = Metric(
    "ml.process.memory.pss",
    "By",
    "updowncounter",
    "Proportional set size: pages that n processes share count 1/n in each, so sums are right.",
    (PROCESS_ROLE,),
)
PROCESS_COUNT: Final = Metric(
    "ml.process.count",
    "{process}",
    "updowncounter",
    "Children of the training process that are alive.",
    (PROCESS_ROLE,),
)
PROCESS_DISK_IO: Final = Metric(
    "process.disk.io",
    "By",
    "counter",
    "Bytes that it caused to be read from and written to disks; the page cache is no disk.",
    (DISK_DIRECTION, PROCESS_ROLE),
)
PROCESS_THREADS: Final = Metric(
    "process.thread.count", "{thread}", "updowncounter", "Threads.", (PROCESS_ROLE,)
)
PROCESS_FILES: Final = Metric(
    "process.unix.file_descriptor.count",
    "{file_descriptor}",
    "updowncounter",
    "Open file descriptors.",
    (PROCESS_ROLE,),
)
PROCESS_CONTEXT_SWITCHES: Final = Metric(
    "process.context_switches",
    "{context_switch}",
    "counter",
    "Switches of all threads; an involuntary one had work left: something else took the CPU.",
    (CONTEXT_SWITCH, PROCESS_ROLE),
)
PROCESS_RUN_DELAY: Final = Metric(
    "ml.process.run_delay",
    "s",
    "counter",
    "Time for which threads were ready to run and got no CPU, summed over them.",
    (PROCESS_ROLE,),
)
MAIN_THREAD_CPU_TIME: Final = Metric(
    "ml.process.main_thread.cpu_time",
    "s",
    "counter",
    "CPU time of the thread of the training process in which the run began, and its loop runs.",
)
MAIN_THREAD_RUN_DELAY: Final = Metric(
    "ml.process.main_thread.run_delay",
    "s",
    "counter",
    "Time for which that thread was ready to run and got no CPU.",
)
PROCESS_WRITE_CALLS: Final = Metric(
    "ml.process.write_calls",
    "{call}",
    "counter",
    "System calls by which the training process wrote to files, pipes and terminals.",
)
PROCESS_FAULTS: Final = Metric(
    "process.paging.faults",
    "{fault}",
    "counter",
    "Page faults; a major one waited for a disk.",
    (PAGING_FAULT, PROCESS_ROLE),
)
PROCESS_UPTIME: Final = Metric(
    "process.uptime", "s", "gauge", "Time since the training process was started."
)
CGROUP_CPU_LIMIT: Final = Metric(
    "linux.cgroup.cpu.limit",
    "{cpu}",
    "updowncounter",
    "CPUs that the process may use: the fewest of its affinity and the quotas above it.",
)
CGROUP_CPU_TIME: Final = Metric(
    "linux.cgroup.cpu.time",
    "s",
    "counter",
    "CPU time of everything in the control group whose quota is tightest.",
)
CGROUP_PERIODS: Final = Metric(
    "linux.cgroup.cpu.periods",
    "{period}",
    "counter",
    "Periods of the quota in which the group wanted to run.",
)
CGROUP_THROTTLED_PERIODS: Final = Metric(
    "linux.cgroup.cpu.throttled.periods",
    "{period}",
    "counter",
    "Those of them in which the quota was used up.",
)
CGROUP_THROTTLED_TIME: Final = Metric(
    "linux.cgroup.cpu.throttled.time",
    "s",
    "counter",
    "Time for which the group was kept from running, summed over CPUs.",
)
CGROUP_MEMORY_LIMIT: Final = Metric(
    "linux.cgroup.memory.limit",
    "By",
    "updowncounter",
    "Memory that the process may use: the least of the host's and the limits above it.",
)
CGROUP_MEMORY: Final = Metric(
    "linux.cgroup.memory.usage",
    "By",
    "updowncounter",
    "Memory of the group whose limit is lowest, page cache included.",
)
CGROUP_WORKING_SET: Final = Metric(
    "linux.cgroup.memory.working_set",
    "By",
    "updowncounter",
    "The same without file pages that lie idle: what counts against the limit in earnest.",
)
CGROUP_MEMORY_PEAK: Final = Metric(
    "linux.cgroup.memory.peak", "By", "gauge", "The most that the group has used so far."
)
CGROUP_OOM_KILLS: Final = Metric(
    "linux.cgroup.memory.oom_kills",
    "{kill}",
    "counter",
    "Processes of the group that were killed for want of memory.",
)
