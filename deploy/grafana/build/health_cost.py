"""What does otel_mlperf cost a run, and does it keep up?"""

from __future__ import annotations

from typing import Final

from dashboard import to
from panels import Panel, Query, Row
from parts import EACH_RANK
from promql import WINDOW, by, rate, series, shown

from otel_mlperf import names

_RUN: Final = to("training-run", "Training run")
_WAY: Final = (names.SIGNAL, names.DESTINATION)
_EACH_WAY: Final = f"{shown(names.SIGNAL)} to {shown(names.DESTINATION)}"
_SKIPPED: Final = (
    (names.SKIPPED_BUSY, "busy"),
    (names.SKIPPED_NO_TORCH, "no torch"),
    (names.SKIPPED_MEMORY, "memory"),
    (names.SKIPPED_CUDA_GRAPHS, "CUDA graphs"),
    (names.SKIPPED_FAILED, "failed"),
)

COST: Final = Row(
    "What does it cost, and does it keep up?",
    (
        Panel(
            kind="timeseries",
            title="Overhead by rank",
            question=(
                "Which rank pays most? Recording time as a share of wall time. Above 1 %: there is "
                "a very hot span; give it aggregate=True."
            ),
            queries=(Query(by("max", (names.RANK,), rate(names.OVERHEAD_TIME)), EACH_RANK),),
            unit="percentunit",
            limits=(0.005, 0.01),
            none="No process has said.",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Items waiting",
            question=(
                "Do servers keep up? Items that wait, by way. Growing for minutes: read the "
                "agent's log and run otel-mlperf doctor."
            ),
            queries=(Query(by("sum", _WAY, series(names.ITEMS_PENDING)), _EACH_WAY),),
            none="No agent has counted yet.",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Sampler time",
            question=(
                "How long does one reading take? Of the last pass of each sampler. Near its "
                "deadline of a second: the driver is slow; readings become rarer."
            ),
            queries=(
                Query(
                    by("max", (names.HOST_NAME, names.SAMPLER), series(names.SAMPLER_DURATION)),
                    f"{shown(names.HOST_NAME)} {shown(names.SAMPLER)}",
                ),
            ),
            unit="s",
            limits=(0.5, 1),
            none="No sampler with a deadline runs.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Late readings",
            question=(
                "Does a driver hang? Passes without an answer within their deadline. Above zero "
                "for long: the driver hangs; look at the kernel's log. Nothing else is delayed."
            ),
            queries=(
                Query(
                    by(
                        "sum",
                        (names.HOST_NAME, names.SAMPLER),
                        f"increase({series(names.SAMPLER_LATE)}[{WINDOW}])",
                    ),
                    f"{shown(names.HOST_NAME)} {shown(names.SAMPLER)}",
                ),
            ),
            limits=(1,),
            none="No sampler with a deadline runs.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="CPU of the agent",
            question=(
                "What does the agent cost? Cores in use on each host, conversions of profiler "
                "windows in it. Above 1 % of a core for long: choose a lower level, or longer "
                "intervals."
            ),
            queries=(
                Query(
                    by("sum", (names.HOST_NAME,), rate(names.AGENT_CPU_TIME)),
                    shown(names.HOST_NAME),
                ),
            ),
            unit="percentunit",
            none="No agent has said.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Memory of the agent",
            question=(
                "Does the agent grow? Its resident memory on each host. It keeps below 100 MiB; "
                "more is a fault: please report it with agent.log."
            ),
            queries=(
                Query(
                    by("max", (names.HOST_NAME,), series(names.AGENT_MEMORY)),
                    shown(names.HOST_NAME),
                ),
            ),
            unit="bytes",
            limits=(100 * 2**20,),
            none="No agent has said.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Journals",
            question=(
                "Does the agent read fast enough? The fullest that it found a rank's journal, as a "
                "share of its size. At 1 records are dropped: give the agent CPU, or raise "
                "OTEL_MLPERF_JOURNAL_ROWS."
            ),
            queries=(
                Query(
                    by("max", (names.RANK,), series(names.JOURNAL_USAGE))
                    + " / "
                    + by("max", (names.RANK,), series(names.JOURNAL_LIMIT)),
                    EACH_RANK,
                ),
            ),
            unit="percentunit",
            limits=(0.5, 0.9),
            none="No agent has said.",
            link=to("ranks", "Ranks"),
        ),
        Panel(
            kind="timeseries",
            title="Dropped beside the journal",
            question=(
                "Does the program go beyond a limit? Names, cells and values that found no room, "
                "and errors of the recorder, by kind. The limits are in the README."
            ),
            queries=(
                Query(
                    by(
                        "sum",
                        (names.RANK, names.ERROR_TYPE),
                        f"increase({series(names.JOURNAL_LOST)}[{WINDOW}])",
                    )
                    + " > 0",
                    f"{EACH_RANK}: {shown(names.ERROR_TYPE)}",
                ),
            ),
            decimals=0,
            none="Nothing was.",
            link=to("ranks", "Ranks"),
        ),
        Panel(
            kind="timeseries",
            title="Profiler windows",
            question=(
                "Were profiler windows written, or why not? Windows of all ranks, and those left "
                "out by reason. *busy*: another profiler runs in the program."
            ),
            queries=(
                Query(f"sum({series(names.PROFILE_WINDOWS)})", "written"),
                *(Query(f"sum({series(metric)}) > 0", why) for metric, why in _SKIPPED),
                Query(
                    by("sum", (names.OUTCOME,), series(names.CONVERSIONS)),
                    f"converted: {shown(names.OUTCOME)}",
                ),
            ),
            decimals=0,
            none="No window was opened.",
            link=_RUN,
            width=24,
            height=6,
        ),
    ),
)
