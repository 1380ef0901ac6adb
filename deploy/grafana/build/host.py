"""Does the machine hold a run back?"""

from __future__ import annotations

from typing import Final

from dashboard import HOST, RANK, Dashboard
from host_flow import FLOW, PROCESSES
from host_parts import CHOSEN, EACH_HOST, EACH_RANK, RANKS, SHOWN_HOST, by_rank, growth, now, panel
from panels import Query, Row
from promql import by, rate, series, where

from otel_mlperf import names

_CPU: Final = Row(
    "CPU",
    (
        panel(
            "CPU of the host",
            "What do the host's CPUs do? Share of the time of all CPUs by mode, without idle time, "
            "by host. High *iowait*: CPUs are idle while tasks wait for disks. High *steal*: the "
            "hypervisor runs other virtual machines on these CPUs.",
            now(names.SYSTEM_CPU_UTILIZATION, names.CPU_MODE, more=where(CPU_MODE="!idle")),
            unit="percentunit",
            stacked=True,
        ),
        panel(
            "CPU of the processes",
            "How many cores do training and workers use? CPU cores by rank and role; dashed: the "
            "lowest CPU limit. Workers near one core each: they are CPU-bound; use more workers. "
            "Main process far above one core: its own threads need the CPUs.",
            by_rank(names.PROCESS_CPU_TIME, names.PROCESS_ROLE, grows=True),
            Query(f"min({series(names.CGROUP_CPU_LIMIT, CHOSEN)})", "limit", dashed=True),
            none="No process readings.",
            link=RANKS,
        ),
        panel(
            "Throttled by the CPU quota",
            "Does the CPU quota slow down the training? Share of quota periods in which the quota "
            "was used up, by rank. Above zero with a high data wait: raise the quota or start "
            "fewer workers.",
            Query(
                by("sum", (names.RANK,), rate(names.CGROUP_THROTTLED_PERIODS, CHOSEN))
                + " / "
                + by("sum", (names.RANK,), f"{rate(names.CGROUP_PERIODS, CHOSEN)} > 0"),
                EACH_RANK,
            ),
            unit="percentunit",
            limits=(0.05, 0.25),
            none="No CPU quota, or no process readings.",
        ),
        panel(
            "Load per CPU",
            "Do threads wait for CPUs? Load average of the last minute (threads that run or wait "
            "for a CPU or a disk) divided by the number of CPUs, by host. Above 1 for long: too "
            "many workers or threads (OMP_NUM_THREADS), waits for disks, or other jobs.",
            Query(
                by("max", EACH_HOST, series(names.LOAD_1M, CHOSEN))
                + " / "
                + by("max", EACH_HOST, series(names.SYSTEM_CPU_COUNT, CHOSEN)),
                SHOWN_HOST,
            ),
            limits=(1, 2),
        ),
        panel(
            "CPU frequency",
            "Are the CPUs throttled? Mean frequency of the CPUs, by host. Falling under load: a "
            "temperature or power limit of the machine; kernel launches become slower, too.",
            now(names.SYSTEM_CPU_FREQUENCY),
            unit="hertz",
            none="Not reported (usual in virtual machines), or not at this level of readings.",
        ),
        panel(
            "Garbage collection",
            "Does garbage collection stop the program? Share of time in which garbage collections "
            "paused the training process, by rank. Above 1 %: call gc.freeze() after set-up, or "
            "collect between steps.",
            by_rank(names.GC_TIME, grows=True),
            unit="percentunit",
            limits=(0.01, 0.05),
            none="No garbage collection yet, or not read.",
            link=RANKS,
        ),
    ),
)

_MEMORY: Final = Row(
    "Memory",
    (
        panel(
            "Memory of the host",
            "What is the host's memory used for? Bytes by host and state, stacked. *cached* is "
            "file data that the kernel reclaims when needed. *used* near the total: use fewer "
            "workers or a smaller prefetch_factor.",
            now(names.SYSTEM_MEMORY, names.MEMORY_STATE),
            unit="bytes",
            stacked=True,
        ),
        panel(
            "Memory of the processes by role",
            "Which processes use the memory? Resident memory in bytes by rank and role; shared "
            "pages count in every process. Workers that grow with every epoch: often a list of "
            "Python objects in the dataset, copied on write.",
            by_rank(names.PROCESS_MEMORY, names.PROCESS_ROLE),
            unit="bytes",
            none="No process readings.",
            link=RANKS,
        ),
        panel(
            "Memory vs. limit",
            "How close is the container to an OOM kill? Memory of the control group without "
            "inactive file pages, divided by its limit, by rank. Red: above 90 %; use fewer "
            "workers or request more memory.",
            Query(
                by("max", (names.RANK,), series(names.CGROUP_WORKING_SET, CHOSEN))
                + " / "
                + by("max", (names.RANK,), series(names.CGROUP_MEMORY_LIMIT, CHOSEN)),
                EACH_RANK,
            ),
            unit="percentunit",
            limits=(0.8, 0.9),
            none="No readings of a memory control group.",
        ),
        panel(
            "Shared memory",
            "Do queued batches fill /dev/shm? Shared memory and tmpfs in bytes, by host. At the "
            "size of /dev/shm, workers die with a bus error: enlarge /dev/shm or use a smaller "
            "prefetch_factor.",
            now(names.SYSTEM_MEMORY_SHARED),
            unit="bytes",
        ),
        panel(
            "Swap and major faults",
            "Does the host swap? Pages per second swapped in and out, and major page faults per "
            "second (waits for a disk), by host. Swapping under load: use fewer workers or a "
            "smaller prefetch_factor. Major faults without swapping: memory-mapped files are read "
            "from disk.",
            growth(names.PAGING_OPERATIONS, names.PAGING_DIRECTION),
            growth(
                names.PAGING_FAULTS,
                more=where(PAGING_FAULT="major"),
                legend=f"{SHOWN_HOST} major faults",
            ),
        ),
        panel(
            "OOM kills",
            "Did the OOM killer end a process? Processes killed since the start of the control "
            "group, by rank. Above zero: use fewer workers or request more memory. A killed worker "
            "ends the run with *DataLoader worker exited unexpectedly*.",
            by_rank(names.CGROUP_OOM_KILLS),
            limits=(1,),
            none="No readings of a memory control group.",
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    "host",
    "Host",
    "The hosts of a run: CPU, memory, disks, network and processes.",
    (RANK, HOST),
    (_CPU, _MEMORY, FLOW, PROCESSES),
)
