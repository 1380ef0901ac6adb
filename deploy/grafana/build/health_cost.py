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
    "Overhead and backlog",
    (
        Panel(
            kind="timeseries",
            title="Overhead by rank",
            question=(
                "Which rank has the highest recording overhead? Recording time as a share of wall "
                "time, by rank. Above 1 %: use `span(aggregate=True)` for sections that are called "
                "very often. In an unchanged loop with short steps, declare the steps with "
                "`om.steps`."
            ),
            queries=(Query(by("max", (names.RANK,), rate(names.OVERHEAD_TIME)), EACH_RANK),),
            unit="percentunit",
            limits=(0.005, 0.01),
            none="No process has reported yet.",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Pending items by destination",
            question=(
                "Do the servers keep up? Items not yet delivered, by signal and destination, on "
                "all ranks. Growing for minutes: check the agent's log and run `otel-mlperf "
                "doctor`."
            ),
            queries=(Query(by("sum", _WAY, series(names.ITEMS_PENDING)), _EACH_WAY),),
            none="No agent has reported yet.",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Sampler duration",
            question=(
                "How long does a reading take? Duration of the last pass of each sampler, by host. "
                "Near the deadline of 1 s: the driver is slow, and late readings are dropped."
            ),
            queries=(
                Query(
                    by("max", (names.HOST_NAME, names.SAMPLER), series(names.SAMPLER_DURATION)),
                    f"{shown(names.HOST_NAME)} {shown(names.SAMPLER)}",
                ),
            ),
            unit="s",
            limits=(0.5, 1),
            none="No sampler with a deadline is active.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Late readings",
            question=(
                "Does a driver hang? Sampler passes per interval that failed or missed their "
                "deadline of 1 s, by host and sampler. Above zero for long: check the kernel log. "
                "Other readings are not delayed."
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
            none="No sampler with a deadline is active.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="CPU of the agent",
            question=(
                "How much CPU does the agent use? CPU cores used by the agent, conversions of "
                "profiler windows included, by host. Above 1 % of a core for long: choose a lower "
                "level of `readings` or a longer interval."
            ),
            queries=(
                Query(
                    by("sum", (names.HOST_NAME,), rate(names.AGENT_CPU_TIME)),
                    shown(names.HOST_NAME),
                ),
            ),
            unit="percentunit",
            none="No agent has reported yet.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Memory of the agent",
            question=(
                "Does the agent leak memory? Resident memory of the agent in bytes, by host; "
                "mapped journals count up to 9 MiB per process. Typical: about 100 MiB plus the "
                "journals. Growing for hours: a leak; please report it with agent.log."
            ),
            queries=(
                Query(
                    by("max", (names.HOST_NAME,), series(names.AGENT_MEMORY)),
                    shown(names.HOST_NAME),
                ),
            ),
            unit="bytes",
            limits=(100 * 2**20,),
            none="No agent has reported yet.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Journal fill level",
            question=(
                "Does the agent read fast enough? Maximum of unread data in a journal, divided by "
                "the size of the journal, by rank. At 100 % records are dropped: give the agent "
                "more CPU, or raise OTEL_MLPERF_JOURNAL_ROWS."
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
            none="No agent has reported yet.",
            link=to("ranks", "Ranks"),
        ),
        Panel(
            kind="timeseries",
            title="Dropped records and recorder errors",
            question=(
                "Does the program exceed a limit of the journal? Records per interval that did not "
                "fit into a table of the journal, damaged records, and errors of the recorder "
                "(*internal*), by rank and type. *names*, *cells* or *values*: use fewer different "
                "names and labels. *internal*: please report it."
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
            none="No record was dropped.",
            link=to("ranks", "Ranks"),
        ),
        Panel(
            kind="timeseries",
            title="Profiler windows",
            question=(
                "Were profiler windows recorded? Number of windows of the selected ranks: written, "
                "skipped by reason, and converted by outcome. *busy*: another profiler was "
                "running. *memory*: earlier windows increased the memory of the process too much."
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
            none="No profiler window was requested.",
            link=_RUN,
            width=24,
            height=6,
        ),
    ),
)
