"""Do disks, network or processes of a host hold a run back?"""

from __future__ import annotations

from typing import Final

from host_parts import RANKS, SHOWN_HOST, by_rank, growth, now, panel
from panels import Row
from promql import where

from otel_mlperf import names

FLOW: Final = Row(
    "Disks and network",
    (
        panel(
            "Disks",
            "How much is read and written? Bytes per second of all real disks. Nothing with a high "
            "data wait: the data comes over the network, or decoding is the limit.",
            growth(names.DISK_IO, names.DISK_DIRECTION),
            unit="Bps",
        ),
        panel(
            "Disk busy",
            "Is a disk the limit? Share of the time in which it had anything to do. At 1 with a "
            "high data wait: a faster disk, larger files, or a cache in memory.",
            growth(names.DISK_IO_TIME, names.SYSTEM_DEVICE),
            unit="percentunit",
        ),
        panel(
            "Network",
            "How much goes over the network? Bytes per second of all interfaces but loopback. Flat "
            "at the card's speed: data, checkpoints or gradients fill it.",
            growth(names.NETWORK_IO, names.NETWORK_DIRECTION),
            unit="Bps",
        ),
        panel(
            "Network errors and drops",
            "Does the network lose packets? Per second. Above zero for long: the cable, the card, "
            "or queues that are too short; collectives and reads from storage wait for resends.",
            growth(names.NETWORK_ERRORS, names.NETWORK_DIRECTION, legend=f"{SHOWN_HOST} errors"),
            growth(names.NETWORK_DROPPED, names.NETWORK_DIRECTION, legend=f"{SHOWN_HOST} drops"),
        ),
        panel(
            "Pressure",
            "What do tasks wait for? Share of the last ten seconds in which some task waited for "
            "CPU, memory or disks.",
            now(names.PSI_AVERAGE, names.PSI_RESOURCE, more=where(PSI_KIND="some")),
            unit="percentunit",
            none="The kernel does not say (no PSI).",
        ),
        panel(
            "Disk of the run folder",
            "Will there be room for the next checkpoint? Share in use of the disk that holds the "
            "run folder. Red: above 95 %.",
            now(names.FILESYSTEM_UTILIZATION, names.MOUNTPOINT),
            unit="percentunit",
            limits=(0.85, 0.95),
        ),
    ),
)

PROCESSES: Final = Row(
    "Processes",
    (
        panel(
            "Workers",
            "Are all DataLoader workers alive? Children of the training process by role. Fewer "
            "than num_workers while training: look for a worker that died.",
            by_rank(names.PROCESS_COUNT, names.PROCESS_ROLE),
            none="No process is read.",
            link=RANKS,
        ),
        panel(
            "Threads",
            "Are there too many threads? By rank and role. Many times the CPUs: each worker starts "
            "a pool of its own; set OMP_NUM_THREADS=1 in the workers.",
            by_rank(names.PROCESS_THREADS, names.PROCESS_ROLE),
            none="No process is read.",
            link=RANKS,
        ),
        panel(
            "Open files",
            "Does it leak file descriptors? By rank and role. A climbing line ends in *Too many "
            "open files*: tensors shared by descriptor, or files that nobody closes.",
            by_rank(names.PROCESS_FILES, names.PROCESS_ROLE),
            none="No process is read, or not at this level.",
            link=RANKS,
        ),
        panel(
            "Disk traffic of the processes",
            "Who reads and writes? Bytes per second that each rank caused on disks.",
            by_rank(names.PROCESS_DISK_IO, names.DISK_DIRECTION, grows=True),
            unit="Bps",
            none="No process is read, or not at this level.",
            link=RANKS,
        ),
    ),
    collapsed=True,
)
