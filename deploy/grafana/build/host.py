"""Does the machine hold a run back?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboard import HOST, RANK, Dashboard, to
from panels import Panel, Query, Row
from promql import by, rate, series, shown, where

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.names import Metric

_CHOSEN: Final = where(HOST_NAME="~$host")
_HOST: Final = (names.HOST_NAME,)
_EACH: Final = shown(names.HOST_NAME)
_EACH_RANK: Final = f"rank {shown(names.RANK)}"
_RUN: Final = to("training-run", "Training run")
_RANKS: Final = to("ranks", "Ranks")
_NOT_READ: Final = "The host is not read, or not at this level."


def _more(more: str) -> str:
    return f"{_CHOSEN},{more}" if more else _CHOSEN


def _now(metric: Metric, *attributes: str, more: str = "", legend: str = "") -> Query:
    """A reading, a line for each host and label."""
    legend = legend or " ".join([_EACH, *map(shown, attributes)])
    return Query(by("max", (*_HOST, *attributes), series(metric, _more(more))), legend)


def _growth(metric: Metric, *attributes: str, more: str = "", legend: str = "") -> Query:
    """What grows in a second, a line for each host and label."""
    legend = legend or " ".join([_EACH, *map(shown, attributes)])
    return Query(by("sum", (*_HOST, *attributes), rate(metric, _more(more))), legend)


def _by_rank(metric: Metric, *attributes: str, more: str = "", grows: bool = False) -> Query:
    """A reading of the processes, a line for each rank and label."""
    inner = rate(metric, _more(more)) if grows else series(metric, _more(more))
    expr = by("sum", (names.RANK, *attributes), inner)
    return Query(expr, " ".join([_EACH_RANK, *map(shown, attributes)]))


def _panel(
    title: str,
    question: str,
    *queries: Query,
    unit: str = "short",
    none: str = _NOT_READ,
    link: tuple[str, str] = _RUN,
    limits: tuple[float, ...] = (),
    stacked: bool = False,
) -> Panel:
    return Panel(
        kind="timeseries",
        title=title,
        question=question,
        queries=queries,
        unit=unit,
        none=none,
        link=link,
        limits=limits,
        stacked=stacked,
        width=8,
    )


_CPU: Final = Row(
    "CPU",
    (
        _panel(
            "CPU of the host",
            "What do the CPUs do? Share of their time by mode, without idling. Much *iowait*: they "
            "wait for disks. *steal*: another virtual machine has them.",
            _now(names.SYSTEM_CPU_UTILIZATION, names.CPU_MODE, more=where(CPU_MODE="!idle")),
            unit="percentunit",
            stacked=True,
        ),
        _panel(
            "CPU of the processes",
            "How many cores do training and its workers use? By role. Workers at one core each: "
            "decoding is the limit, use more of them. The main process above one: its own loading.",
            _by_rank(names.PROCESS_CPU_TIME, names.PROCESS_ROLE, grows=True),
            Query(f"min({series(names.CGROUP_CPU_LIMIT, _CHOSEN)})", "limit", dashed=True),
            none="No process is read.",
            link=_RANKS,
        ),
        _panel(
            "Throttled by the quota",
            "Does the container's CPU quota stop it? Share of the quota's periods in which it was "
            "used up. Above zero with a high data wait: raise the quota, or start fewer workers.",
            Query(
                by("sum", (names.RANK,), rate(names.CGROUP_THROTTLED_PERIODS, _CHOSEN))
                + " / "
                + by("sum", (names.RANK,), f"{rate(names.CGROUP_PERIODS, _CHOSEN)} > 0"),
                _EACH_RANK,
            ),
            unit="percentunit",
            limits=(0.05, 0.25),
            none="There is no quota, or nothing ran.",
        ),
        _panel(
            "Load against CPUs",
            "Is there more to do than CPUs? Threads that run or wait, divided by the CPUs. Above "
            "1 for long: too many workers or threads (OMP_NUM_THREADS), or somebody else's job.",
            Query(
                by("max", _HOST, series(names.LOAD_1M, _CHOSEN))
                + " / "
                + by("max", _HOST, series(names.SYSTEM_CPU_COUNT, _CHOSEN)),
                _EACH,
            ),
            limits=(1, 2),
        ),
        _panel(
            "CPU frequency and temperature",
            "Are the CPUs held down? Mean frequency. Falling under load: heat or a power limit of "
            "the machine; the GPU's launches become slower too.",
            _now(names.SYSTEM_CPU_FREQUENCY),
            unit="hertz",
            none="The machine does not say: usual in a virtual one.",
        ),
        _panel(
            "Garbage collection",
            "Does Python stop to collect garbage? Share of the time that the training process "
            "stood still for it. Above 1 %: gc.freeze() after set-up, or collect between steps.",
            _by_rank(names.GC_TIME, grows=True),
            unit="percentunit",
            limits=(0.01, 0.05),
            none="The program has not collected any, or does not say.",
            link=_RANKS,
        ),
    ),
)

_MEMORY: Final = Row(
    "Memory",
    (
        _panel(
            "Memory of the host",
            "What is the memory used for? By state. *cached* is files, and given back when needed.",
            _now(names.SYSTEM_MEMORY, names.MEMORY_STATE),
            unit="bytes",
            stacked=True,
        ),
        _panel(
            "Memory of the processes by role",
            "Who needs it? Resident memory of training and workers; pages that they share count in "
            "each. Workers that grow from epoch to epoch: a list of Python objects in the dataset, "
            "copied on write.",
            _by_rank(names.PROCESS_MEMORY, names.PROCESS_ROLE),
            unit="bytes",
            none="No process is read.",
            link=_RANKS,
        ),
        _panel(
            "Memory against the limit",
            "How near is the kernel to killing it? What counts against the limit of the container "
            "in earnest, as a share of it. Red: above 90 %.",
            Query(
                by("max", (names.RANK,), series(names.CGROUP_WORKING_SET, _CHOSEN))
                + " / "
                + by("max", (names.RANK,), series(names.CGROUP_MEMORY_LIMIT, _CHOSEN)),
                _EACH_RANK,
            ),
            unit="percentunit",
            limits=(0.8, 0.9),
            none="The control group's memory is not read.",
        ),
        _panel(
            "Shared memory",
            "Do batches on their way fill /dev/shm? Bytes of shared memory and tmpfs. At the size "
            "of /dev/shm workers die with a bus error: a larger one, or fewer prefetched batches.",
            _now(names.SYSTEM_MEMORY_SHARED),
            unit="bytes",
        ),
        _panel(
            "Swap and major faults",
            "Does it swap? Pages per second swapped, and faults that waited for a disk. Anything "
            "above zero under load: fewer workers or smaller prefetch.",
            _growth(names.PAGING_OPERATIONS, names.PAGING_DIRECTION),
            _growth(
                names.PAGING_FAULTS,
                more=where(PAGING_FAULT="major"),
                legend=f"{_EACH} major faults",
            ),
        ),
        _panel(
            "Killed for want of memory",
            "Did the kernel kill something? Processes of the control group, since it began. A "
            "worker that is killed ends the run with *DataLoader worker exited unexpectedly*.",
            _by_rank(names.CGROUP_OOM_KILLS),
            limits=(1,),
            none="The control group's memory is not read.",
        ),
    ),
)

_FLOW: Final = Row(
    "Disks and network",
    (
        _panel(
            "Disks",
            "How much is read and written? Bytes per second of all real disks. Nothing with a high "
            "data wait: the data comes over the network, or decoding is the limit.",
            _growth(names.DISK_IO, names.DISK_DIRECTION),
            unit="Bps",
        ),
        _panel(
            "Disk busy",
            "Is a disk the limit? Share of the time in which it had anything to do. At 1 with a "
            "high data wait: a faster disk, larger files, or a cache in memory.",
            _growth(names.DISK_IO_TIME, names.SYSTEM_DEVICE),
            unit="percentunit",
        ),
        _panel(
            "Network",
            "How much goes over the network? Bytes per second of all interfaces but loopback. Flat "
            "at the card's speed: data, checkpoints or gradients fill it.",
            _growth(names.NETWORK_IO, names.NETWORK_DIRECTION),
            unit="Bps",
        ),
        _panel(
            "Network errors and drops",
            "Does the network lose packets? Per second. Above zero for long: the cable, the card, "
            "or queues that are too short; collectives and reads from storage wait for resends.",
            _growth(names.NETWORK_ERRORS, names.NETWORK_DIRECTION, legend=f"{_EACH} errors"),
            _growth(names.NETWORK_DROPPED, names.NETWORK_DIRECTION, legend=f"{_EACH} drops"),
        ),
        _panel(
            "Pressure",
            "What do tasks wait for? Share of the last ten seconds in which some task waited for "
            "CPU, memory or disks.",
            _now(names.PSI_AVERAGE, names.PSI_RESOURCE, more=where(PSI_KIND="some")),
            unit="percentunit",
            none="The kernel does not say (no PSI).",
        ),
        _panel(
            "Disk of the run folder",
            "Will there be room for the next checkpoint? Share in use of the disk that holds the "
            "run folder. Red: above 95 %.",
            _now(names.FILESYSTEM_UTILIZATION, names.MOUNTPOINT),
            unit="percentunit",
            limits=(0.85, 0.95),
        ),
    ),
)

_PROCESSES: Final = Row(
    "Processes",
    (
        _panel(
            "Workers",
            "Are all DataLoader workers alive? Children of the training process by role. Fewer "
            "than num_workers while training: look for a worker that died.",
            _by_rank(names.PROCESS_COUNT, names.PROCESS_ROLE),
            none="No process is read.",
            link=_RANKS,
        ),
        _panel(
            "Threads",
            "Are there too many threads? By rank and role. Many times the CPUs: each worker starts "
            "a pool of its own; set OMP_NUM_THREADS=1 in the workers.",
            _by_rank(names.PROCESS_THREADS, names.PROCESS_ROLE),
            none="No process is read.",
            link=_RANKS,
        ),
        _panel(
            "Open files",
            "Does it leak file descriptors? By rank and role. A climbing line ends in *Too many "
            "open files*: tensors shared by descriptor, or files that nobody closes.",
            _by_rank(names.PROCESS_FILES, names.PROCESS_ROLE),
            none="No process is read, or not at this level.",
            link=_RANKS,
        ),
        _panel(
            "Disk traffic of the processes",
            "Who reads and writes? Bytes per second that each rank caused on disks.",
            _by_rank(names.PROCESS_DISK_IO, names.DISK_DIRECTION, grows=True),
            unit="Bps",
            none="No process is read, or not at this level.",
            link=_RANKS,
        ),
    ),
    collapsed=True,
)

DASHBOARD: Final = Dashboard(
    "host",
    "Host",
    "The machines of a run: do CPU, memory, disks or network hold it back?",
    (RANK, HOST),
    (_CPU, _MEMORY, _FLOW, _PROCESSES),
)
