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
            "What do the CPUs do? Share of their time by mode, without idling. Much *iowait*: they "
            "wait for disks. *steal*: another virtual machine has them.",
            now(names.SYSTEM_CPU_UTILIZATION, names.CPU_MODE, more=where(CPU_MODE="!idle")),
            unit="percentunit",
            stacked=True,
        ),
        panel(
            "CPU of the processes",
            "How many cores do training and its workers use? By role. Workers at one core each: "
            "decoding is the limit, use more of them. The main process above one: its own loading.",
            by_rank(names.PROCESS_CPU_TIME, names.PROCESS_ROLE, grows=True),
            Query(f"min({series(names.CGROUP_CPU_LIMIT, CHOSEN)})", "limit", dashed=True),
            none="No process is read.",
            link=RANKS,
        ),
        panel(
            "Throttled by the quota",
            "Does the container's CPU quota stop it? Share of the quota's periods in which it was "
            "used up. Above zero with a high data wait: raise the quota, or start fewer workers.",
            Query(
                by("sum", (names.RANK,), rate(names.CGROUP_THROTTLED_PERIODS, CHOSEN))
                + " / "
                + by("sum", (names.RANK,), f"{rate(names.CGROUP_PERIODS, CHOSEN)} > 0"),
                EACH_RANK,
            ),
            unit="percentunit",
            limits=(0.05, 0.25),
            none="There is no quota, or nothing ran.",
        ),
        panel(
            "Load against CPUs",
            "Is there more to do than CPUs? Threads that run or wait, divided by the CPUs. Above "
            "1 for long: too many workers or threads (OMP_NUM_THREADS), or somebody else's job.",
            Query(
                by("max", EACH_HOST, series(names.LOAD_1M, CHOSEN))
                + " / "
                + by("max", EACH_HOST, series(names.SYSTEM_CPU_COUNT, CHOSEN)),
                SHOWN_HOST,
            ),
            limits=(1, 2),
        ),
        panel(
            "CPU frequency and temperature",
            "Are the CPUs held down? Mean frequency. Falling under load: heat or a power limit of "
            "the machine; the GPU's launches become slower too.",
            now(names.SYSTEM_CPU_FREQUENCY),
            unit="hertz",
            none="The machine does not say: usual in a virtual one.",
        ),
        panel(
            "Garbage collection",
            "Does Python stop to collect garbage? Share of the time that the training process "
            "stood still for it. Above 1 %: gc.freeze() after set-up, or collect between steps.",
            by_rank(names.GC_TIME, grows=True),
            unit="percentunit",
            limits=(0.01, 0.05),
            none="The program has not collected any, or does not say.",
            link=RANKS,
        ),
    ),
)

_MEMORY: Final = Row(
    "Memory",
    (
        panel(
            "Memory of the host",
            "What is the memory used for? By state. *cached* is files, and given back when needed.",
            now(names.SYSTEM_MEMORY, names.MEMORY_STATE),
            unit="bytes",
            stacked=True,
        ),
        panel(
            "Memory of the processes by role",
            "Who needs it? Resident memory of training and workers; pages that they share count in "
            "each. Workers that grow from epoch to epoch: a list of Python objects in the dataset, "
            "copied on write.",
            by_rank(names.PROCESS_MEMORY, names.PROCESS_ROLE),
            unit="bytes",
            none="No process is read.",
            link=RANKS,
        ),
        panel(
            "Memory against the limit",
            "How near is the kernel to killing it? What counts against the limit of the container "
            "in earnest, as a share of it. Red: above 90 %.",
            Query(
                by("max", (names.RANK,), series(names.CGROUP_WORKING_SET, CHOSEN))
                + " / "
                + by("max", (names.RANK,), series(names.CGROUP_MEMORY_LIMIT, CHOSEN)),
                EACH_RANK,
            ),
            unit="percentunit",
            limits=(0.8, 0.9),
            none="The control group's memory is not read.",
        ),
        panel(
            "Shared memory",
            "Do batches on their way fill /dev/shm? Bytes of shared memory and tmpfs. At the size "
            "of /dev/shm workers die with a bus error: a larger one, or fewer prefetched batches.",
            now(names.SYSTEM_MEMORY_SHARED),
            unit="bytes",
        ),
        panel(
            "Swap and major faults",
            "Does it swap? Pages per second swapped, and faults that waited for a disk. Anything "
            "above zero under load: fewer workers or smaller prefetch.",
            growth(names.PAGING_OPERATIONS, names.PAGING_DIRECTION),
            growth(
                names.PAGING_FAULTS,
                more=where(PAGING_FAULT="major"),
                legend=f"{SHOWN_HOST} major faults",
            ),
        ),
        panel(
            "Killed for want of memory",
            "Did the kernel kill something? Processes of the control group, since it began. A "
            "worker that is killed ends the run with *DataLoader worker exited unexpectedly*.",
            by_rank(names.CGROUP_OOM_KILLS),
            limits=(1,),
            none="The control group's memory is not read.",
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    "host",
    "Host",
    "The machines of a run: do CPU, memory, disks or network hold it back?",
    (RANK, HOST),
    (_CPU, _MEMORY, FLOW, PROCESSES),
)
