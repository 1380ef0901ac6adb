"""Metrics of the host, of the processes of a run, and of their control groups."""

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
    "Time of all logical CPUs by mode; of a single CPU if cpu.logical_number is given.",
    (CPU_MODE, CPU_NUMBER),
)
SYSTEM_CPU_UTILIZATION: Final = Metric(
    "system.cpu.utilization",
    "1",
    "gauge",
    "Share of CPU time by mode since the previous reading; the modes sum to 1.",
    (CPU_MODE,),
)
SYSTEM_CPU_FREQUENCY: Final = Metric(
    "system.cpu.frequency", "Hz", "gauge", "Mean current frequency of the logical CPUs."
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
    "linux.load_average.5m",
    "{thread}",
    "gauge",
    "Threads that run or wait for a CPU or a disk, mean of the last five minutes.",
)
LOAD_15M: Final = Metric(
    "linux.load_average.15m",
    "{thread}",
    "gauge",
    "Threads that run or wait for a CPU or a disk, mean of the last fifteen minutes.",
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
    "Memory of the host, regardless of limits of a container.",
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
    "Memory available to programs without swapping, as estimated by the kernel.",
)
SYSTEM_MEMORY_SHARED: Final = Metric(
    "system.memory.linux.shared",
    "By",
    "updowncounter",
    "Shared memory and tmpfs, which contain the batches that DataLoader workers pass to the "
    "program.",
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
    "Page faults; a major fault waited for a disk.",
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
    "Time in which the disk had at least one request in progress.",
    (SYSTEM_DEVICE,),
)
NETWORK_IO: Final = Metric(
    "system.network.io",
    "By",
    "counter",
    "Bytes received and transmitted by each interface except loopback.",
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
    "Intact packets that were dropped, mostly because of a full queue.",
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
    "Space on the filesystem of the run folder by state: used, free, reserved (for root).",
    (MOUNTPOINT, FILESYSTEM_STATE),
)
FILESYSTEM_LIMIT: Final = Metric(
    "system.filesystem.limit",
    "By",
    "updowncounter",
    "Size of the filesystem of the run folder.",
    (MOUNTPOINT,),
)
FILESYSTEM_UTILIZATION: Final = Metric(
    "system.filesystem.utilization",
    "1",
    "gauge",
    "Share of the filesystem of the run folder in use, as ``df`` computes it: used / (used + "
    "free).",
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
    "Share of the last ten seconds in which tasks of the host waited for the resource.",
    (PSI_RESOURCE, PSI_KIND),
)

PROCESS_CPU_TIME: Final = Metric(
    "process.cpu.time",
    "s",
    "counter",
    "CPU time. Time of a child process up to its last reading stays in its role; the rest, up "
    "to its end, is counted as role ended.",
    (CPU_MODE, PROCESS_ROLE),
)
PROCESS_CPU_UTILIZATION: Final = Metric(
    "process.cpu.utilization",
    "1",
    "gauge",
    "CPU time since the previous reading / (elapsed time x CPUs available to the process).",
    (PROCESS_ROLE,),
)
PROCESS_MEMORY: Final = Metric(
    "process.memory.usage",
    "By",
    "updowncounter",
    "Resident memory; shared pages are counted in each process.",
    (PROCESS_ROLE,),
)
PROCESS_MEMORY_VIRTUAL: Final = Metric(
    "process.memory.virtual", "By", "updowncounter", "Virtual memory.", (PROCESS_ROLE,)
)
PROCESS_MEMORY_UTILIZATION: Final = Metric(
    "process.memory.utilization",
    "1",
    "gauge",
    "Resident memory as a share of the host's memory.",
    (PROCESS_ROLE,),
)
PROCESS_MEMORY_PSS: Final = Metric(
    "ml.process.memory.pss",
    "By",
    "updowncounter",
    "Proportional set size: pages shared by n processes count 1/n in each, so sums over "
    "processes are exact.",
    (PROCESS_ROLE,),
)
PROCESS_COUNT: Final = Metric(
    "ml.process.count",
    "{process}",
    "updowncounter",
    "Live child processes of the training process.",
    (PROCESS_ROLE,),
)
PROCESS_DISK_IO: Final = Metric(
    "process.disk.io",
    "By",
    "counter",
    "Bytes read from and written to disks for the process; accesses to the page cache are not "
    "counted.",
    (DISK_DIRECTION, PROCESS_ROLE),
)
PROCESS_THREADS: Final = Metric(
    "process.thread.count", "{thread}", "updowncounter", "Number of threads.", (PROCESS_ROLE,)
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
    "Context switches of all threads; an involuntary one preempted a thread that had work left.",
    (CONTEXT_SWITCH, PROCESS_ROLE),
)
PROCESS_RUN_DELAY: Final = Metric(
    "ml.process.run_delay",
    "s",
    "counter",
    "Time that threads were runnable without a CPU, summed over threads.",
    (PROCESS_ROLE,),
)
MAIN_THREAD_CPU_TIME: Final = Metric(
    "ml.process.main_thread.cpu_time",
    "s",
    "counter",
    "CPU time of the main thread of the run: the thread that started it.",
)
MAIN_THREAD_RUN_DELAY: Final = Metric(
    "ml.process.main_thread.run_delay",
    "s",
    "counter",
    "Time that the main thread of the run was runnable without a CPU.",
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
    "Page faults; a major fault waited for a disk.",
    (PAGING_FAULT, PROCESS_ROLE),
)
PROCESS_UPTIME: Final = Metric(
    "process.uptime", "s", "gauge", "Time since the start of the training process."
)
CGROUP_CPU_LIMIT: Final = Metric(
    "linux.cgroup.cpu.limit",
    "{cpu}",
    "updowncounter",
    "CPUs available to the process: the minimum of its affinity and the quotas of its control "
    "groups.",
)
CGROUP_CPU_TIME: Final = Metric(
    "linux.cgroup.cpu.time",
    "s",
    "counter",
    "CPU time of the control group with the tightest quota.",
)
CGROUP_PERIODS: Final = Metric(
    "linux.cgroup.cpu.periods",
    "{period}",
    "counter",
    "Quota periods in which that control group was runnable.",
)
CGROUP_THROTTLED_PERIODS: Final = Metric(
    "linux.cgroup.cpu.throttled.periods",
    "{period}",
    "counter",
    "Quota periods in which that control group used up its quota.",
)
CGROUP_THROTTLED_TIME: Final = Metric(
    "linux.cgroup.cpu.throttled.time",
    "s",
    "counter",
    "Time that the quota prevented that control group from running, summed over CPUs.",
)
CGROUP_MEMORY_LIMIT: Final = Metric(
    "linux.cgroup.memory.limit",
    "By",
    "updowncounter",
    "Memory available to the process: the minimum of the host's memory and the limits of its "
    "control groups.",
)
CGROUP_MEMORY: Final = Metric(
    "linux.cgroup.memory.usage",
    "By",
    "updowncounter",
    "Memory of the control group with the lowest limit, page cache included.",
)
CGROUP_WORKING_SET: Final = Metric(
    "linux.cgroup.memory.working_set",
    "By",
    "updowncounter",
    "Memory of that control group without inactive file pages: the part that cannot be "
    "reclaimed easily.",
)
CGROUP_MEMORY_PEAK: Final = Metric(
    "linux.cgroup.memory.peak", "By", "gauge", "Peak memory of that control group."
)
CGROUP_OOM_KILLS: Final = Metric(
    "linux.cgroup.memory.oom_kills",
    "{kill}",
    "counter",
    "Processes of the control group killed by the OOM killer.",
)
