"""Metrics of the processes of a run, and of their control group."""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import (
    CONTEXT_SWITCH,
    CPU_MODE,
    DISK_DIRECTION,
    PAGING_FAULT,
    PROCESS_ROLE,
)
from otel_mlperf.names.metric import Metric

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
