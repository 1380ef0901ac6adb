"""Do disks, network or processes of a host hold a run back?"""

from __future__ import annotations

from typing import Final

from host_parts import RANKS, SHOWN_HOST, by_rank, growth, now, panel
from panels import Row
from promql import shown, where

from otel_mlperf import names

_EACH_DIRECTION: Final = f"{SHOWN_HOST} {shown(names.NETWORK_DIRECTION)}"

FLOW: Final = Row(
    "Disks and network",
    (
        panel(
            "Disk traffic",
            "How much is read and written? Bytes per second of all physical disks, by host and "
            "direction. Near zero with a high data wait: data comes over the network, or decoding "
            "is the bottleneck.",
            growth(names.DISK_IO, names.DISK_DIRECTION),
            unit="Bps",
        ),
        panel(
            "Disk busy",
            "Is a disk the bottleneck? Share of time with at least one request in progress, by "
            "host and disk. Near 100 % with a high data wait: use a faster disk, larger files or a "
            "cache in memory.",
            growth(names.DISK_IO_TIME, names.SYSTEM_DEVICE),
            unit="percentunit",
        ),
        panel(
            "Network traffic",
            "How much goes over the network? Bytes per second of all interfaces except loopback, "
            "by host and direction. Constant at the speed of the network card: data, checkpoints "
            "or gradients saturate it.",
            growth(names.NETWORK_IO, names.NETWORK_DIRECTION),
            unit="Bps",
        ),
        panel(
            "Network errors and drops",
            "Does the network lose packets? Errors and dropped packets per second, by host and "
            "direction. Above zero for long: check the cable, the network card and its queue "
            "lengths; collectives and storage wait for retransmissions.",
            growth(
                names.NETWORK_ERRORS, names.NETWORK_DIRECTION, legend=f"{_EACH_DIRECTION} errors"
            ),
            growth(
                names.NETWORK_DROPPED, names.NETWORK_DIRECTION, legend=f"{_EACH_DIRECTION} drops"
            ),
        ),
        panel(
            "Pressure",
            "Do tasks wait for CPU, memory or I/O? Share of the last 10 seconds in which at least "
            "one task waited (PSI *some*), by host and resource. Memory above zero: the host swaps "
            "or reclaims memory. I/O high with a high data wait: storage is the bottleneck.",
            now(names.PSI_AVERAGE, names.PSI_RESOURCE, more=where(PSI_KIND="some")),
            unit="percentunit",
            none="No host readings, or the kernel has no PSI.",
        ),
        panel(
            "Disk usage of the run folder",
            "Is the disk of the run folder nearly full? Used share of the filesystem that contains "
            "the run folder, by host. Red: above 95 %; delete old checkpoints and run folders "
            "before the next checkpoint.",
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
            "Are all DataLoader workers alive? Number of live child processes of the training "
            "process, by rank and role. Fewer than num_workers during training: look for a worker "
            "that died.",
            by_rank(names.PROCESS_COUNT, names.PROCESS_ROLE),
            none="No process readings.",
            link=RANKS,
        ),
        panel(
            "Threads",
            "Are there too many threads? Number of threads, by rank and role. Many times the "
            "number of CPUs: each worker starts its own thread pool; set OMP_NUM_THREADS=1 in the "
            "workers.",
            by_rank(names.PROCESS_THREADS, names.PROCESS_ROLE),
            none="No process readings.",
            link=RANKS,
        ),
        panel(
            "Open files",
            "Does the program leak file descriptors? Open file descriptors, by rank and role. A "
            "rising line ends in *Too many open files*: close files, and check tensors shared by "
            "file descriptor.",
            by_rank(names.PROCESS_FILES, names.PROCESS_ROLE),
            none="No process readings, or not at this level of readings.",
            link=RANKS,
        ),
        panel(
            "Disk traffic of the processes",
            "Which rank reads and writes? Bytes per second read from and written to disks, by rank "
            "and direction, without the page cache. One rank above the others: check its data "
            "shard, and whether only this rank writes checkpoints.",
            by_rank(names.PROCESS_DISK_IO, names.DISK_DIRECTION, grows=True),
            unit="Bps",
            none="No process readings, or not at this level of readings.",
            link=RANKS,
        ),
    ),
    collapsed=True,
)
