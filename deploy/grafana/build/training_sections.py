"""What do sections use whose resources are measured, and how long is a GPU in them?"""

from __future__ import annotations

from typing import Final

from dashboard import to
from panels import Panel, Query, Row
from promql import by, rate, series, shown

from otel_mlperf import names

_NAME: Final = (names.SECTION_NAME,)
_EACH: Final = shown(names.SECTION_NAME)
_NONE: Final = "No section is measured: span(resources=True), or the setting resource_categories."

SECTION_USE: Final = Row(
    "What sections use",
    (
        Panel(
            kind="timeseries",
            title="CPU of sections",
            question=(
                "Which section keeps a CPU busy? CPU time of the section's thread per second, all "
                "chosen ranks together; what is inside counts in each. A long section with little "
                "of it waits: for a device, a disk, a lock."
            ),
            queries=(Query(by("sum", _NAME, rate(names.SECTION_CPU)), _EACH),),
            none=_NONE,
            link=to("host", "CPU of the host"),
        ),
        Panel(
            kind="timeseries",
            title="GPU time of sections",
            question=(
                "What is the GPU given its time by? Seconds per second from begin to end of each "
                "section on the device, all chosen ranks together; *idle*: in none of the sections "
                "that give it work. Much idle time: look at what the host does between them."
            ),
            queries=(
                Query(by("sum", _NAME, rate(names.SECTION_GPU)), _EACH),
                Query(by("sum", (), rate(names.STEP_GPU_IDLE)), "idle", dashed=True),
            ),
            none="The program uses no CUDA.",
            link=to("gpus", "GPUs"),
        ),
        Panel(
            kind="timeseries",
            title="Memory of sections",
            question=(
                "Which section makes the process grow, or the GPU's memory? What all of its calls "
                "together added to resident memory and to PyTorch's allocator. A line that only "
                "climbs keeps what it made."
            ),
            queries=(
                Query(by("sum", _NAME, series(names.SECTION_MEMORY_GROWTH)), f"{_EACH} process"),
                Query(by("sum", _NAME, series(names.SECTION_CUDA_GROWTH)), f"{_EACH} CUDA"),
            ),
            unit="bytes",
            none=_NONE,
            link=to("host", "Memory of the host"),
        ),
        Panel(
            kind="timeseries",
            title="Peaks of sections",
            question=(
                "Where is memory at its highest? The most that each section was the first to "
                "reach. The highest line is where the next out-of-memory will be."
            ),
            queries=(
                Query(by("max", _NAME, series(names.SECTION_MEMORY_PEAK)), f"{_EACH} process"),
                Query(by("max", _NAME, series(names.SECTION_CUDA_PEAK)), f"{_EACH} CUDA"),
            ),
            unit="bytes",
            none=_NONE,
            link=to("gpus", "GPUs"),
        ),
        Panel(
            kind="timeseries",
            title="Reading and writing of sections",
            question=(
                "Which section moves bytes? What its thread's calls read and wrote per second, "
                "the page cache included. Far above *Disk and network*: it comes from the cache."
            ),
            queries=(
                Query(
                    by("sum", (*_NAME, names.DISK_DIRECTION), rate(names.SECTION_IO)),
                    f"{_EACH} {shown(names.DISK_DIRECTION)}",
                ),
            ),
            unit="Bps",
            none=_NONE,
            link=to("host", "Disks"),
        ),
        Panel(
            kind="timeseries",
            title="Context switches of sections",
            question=(
                "Which section waits often, or loses its CPU? *voluntary*: it waited for "
                "something. *involuntary*: it had more to do, and others got the CPU: too many "
                "threads or workers for the cores."
            ),
            queries=(
                Query(
                    by("sum", (*_NAME, names.CONTEXT_SWITCH), rate(names.SECTION_SWITCHES)),
                    f"{_EACH} {shown(names.CONTEXT_SWITCH)}",
                ),
            ),
            none=_NONE,
            link=to("host", "CPU of the host"),
        ),
    ),
)
