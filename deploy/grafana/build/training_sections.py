"""What do sections use whose resources are measured, and how long is a GPU in them?"""

from __future__ import annotations

from typing import Final

from dashboard import to
from panels import Panel, Query, Row
from promql import by, rate, series, shown

from otel_mlperf import names

_NAME: Final = (names.SECTION_NAME,)
_EACH: Final = shown(names.SECTION_NAME)
_NONE: Final = "No section has measured resources: span(resources=True) or resource_categories."

SECTION_USE: Final = Row(
    "Resources of sections",
    (
        Panel(
            kind="timeseries",
            title="CPU of sections",
            question=(
                "Which section keeps a CPU busy? CPU cores used by the section's thread, child "
                "sections included, summed over the selected ranks. A long section with little CPU "
                "time waits: for a device, a disk or a lock."
            ),
            queries=(Query(by("sum", _NAME, rate(names.SECTION_CPU)), _EACH),),
            none=_NONE,
            link=to("host", "CPU of the host"),
        ),
        Panel(
            kind="timeseries",
            title="GPU time of sections",
            question=(
                "Which section uses the GPU? GPU seconds per second from start to end of each "
                "section, child sections and gaps included, summed over the selected ranks; "
                "*idle*: GPU time of steps outside the sections that launch GPU work. High *idle*: "
                "check what the host does between these sections."
            ),
            queries=(
                Query(by("sum", _NAME, rate(names.SECTION_GPU)), _EACH),
                Query(by("sum", (), rate(names.STEP_GPU_IDLE)), "idle", dashed=True),
            ),
            none="No GPU times: the setting gpu_time_categories is empty, or no CUDA is used.",
            link=to("gpus", "GPUs"),
        ),
        Panel(
            kind="timeseries",
            title="Memory of sections",
            question=(
                "Which section makes memory grow? Growth of resident memory (*process*) and of "
                "PyTorch's CUDA memory (*CUDA*) in bytes, summed over all calls and the selected "
                "ranks. A line that only rises: the section leaks memory, or other sections "
                "release it."
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
            title="Memory peaks of sections",
            question=(
                "Which section sets the memory peak? Highest new peak of resident memory "
                "(*process*) and of PyTorch's CUDA memory (*CUDA*) that a call of the section set, "
                "in bytes; maximum of the selected ranks. The highest line: out of memory is most "
                "likely there."
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
            title="I/O of sections",
            question=(
                "Which section reads or writes the most? Bytes per second read and written by the "
                "section's thread, page cache included, summed over the selected ranks. Far above "
                "*Disk and network*: the data comes from the page cache."
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
                "Which section waits, or loses its CPU? Context switches per second of the "
                "section's thread, summed over the selected ranks. Many *voluntary* switches: the "
                "section waits for I/O, locks or devices. Many *involuntary* switches: too many "
                "threads or workers for the CPUs."
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
