"""Can what otel_mlperf shows be believed, and what does it cost?"""

from __future__ import annotations

from typing import Final

from dashboard import RANK, Dashboard, to
from health_cost import COST
from panels import Panel, Query, Row
from parts import LOST
from promql import WINDOW, by, rate, series, shown, where

from otel_mlperf import names

_RUN: Final = to("training-run", "Training run")
_WAY: Final = (names.SIGNAL, names.DESTINATION)
_EACH_WAY: Final = f"{shown(names.SIGNAL)} to {shown(names.DESTINATION)}"


def _unexplained() -> str:
    """Created - (what has ended + pending): nothing but zero is right."""
    ended = by("sum", _WAY, series(names.ITEMS))
    created, pending = (
        by("sum", _WAY, series(metric)) for metric in (names.ITEMS_CREATED, names.ITEMS_PENDING)
    )
    return f"{created} - {ended} - {pending}"


_BELIEVED: Final = Row(
    "Accounting",
    (
        LOST,
        Panel(
            kind="stat",
            title="Unexplained items",
            question=(
                "Is every item accounted for? Created items minus delivered, rolled-up, "
                "unselected, lost and pending items: minimum of the last 5 minutes, summed over "
                "signals and destinations. Not zero: a bug in otel_mlperf; please report it with "
                "agent.log."
            ),
            queries=(Query(f"sum(min_over_time(abs({_unexplained()})[5m:15s]))", "items"),),
            limits=(1,),
            decimals=0,
            none="No agent has reported yet.",
            link=_RUN,
            width=3,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Pending items",
            question=(
                "Is telemetry waiting for the server? Items not yet delivered by OTLP, by signal, "
                "on all ranks; sections of unfinished steps are included. Growing: the server does "
                "not respond or is too slow. Unsent items are stored on disk, up to the limit "
                "max_outbox_bytes."
            ),
            queries=(
                Query(
                    by("sum", _WAY, series(names.ITEMS_PENDING, where(DESTINATION="otlp"))),
                    shown(names.SIGNAL),
                ),
            ),
            decimals=0,
            none="No agent has reported yet.",
            link=_RUN,
            width=6,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Recording overhead",
            question=(
                "How much does recording slow down the training? Recording time as a share of wall "
                "time: maximum of the selected ranks. Red: above 1 %; use `span(aggregate=True)` "
                "for sections that are called very often. In an unchanged loop with short steps, "
                "declare the steps with `om.steps`."
            ),
            queries=(Query(f"max({rate(names.OVERHEAD_TIME)})", "of wall time"),),
            unit="percentunit",
            limits=(0.005, 0.01),
            none="No process has reported yet.",
            link=_RUN,
            width=6,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Reporting ranks",
            question=(
                "Do all ranks report? Number of selected ranks with metrics in the last five "
                "minutes. Fewer than the job has: check with `otel-mlperf doctor` whether the "
                "agents run."
            ),
            queries=(
                Query(
                    "count(" + by("max", (names.RANK,), series(names.RUN_START_TIME)) + ")", "ranks"
                ),
            ),
            decimals=0,
            none="No rank: the run has ended, or no metrics arrive.",
            link=to("ranks", "Ranks"),
            width=6,
            height=4,
        ),
        Panel(
            kind="timeseries",
            title="Lost items by reason",
            question=(
                "Why was telemetry lost? Lost items per interval by signal, destination and "
                "reason, on all ranks. *ring_full*: the agent got too little CPU. *outbox_full*: "
                "the server was unavailable for too long. *rejected*: check the agent's log and "
                "run `otel-mlperf doctor`."
            ),
            queries=(
                Query(
                    by(
                        "sum",
                        (*_WAY, names.ERROR_TYPE),
                        f"increase({series(names.ITEMS, where(OUTCOME='lost'))}[{WINDOW}])",
                    ),
                    f"{_EACH_WAY}: {shown(names.ERROR_TYPE)}",
                ),
            ),
            none="No item was lost.",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Items by outcome",
            question=(
                "What happened to the recorded items? Items per second by signal, destination and "
                "outcome, on all ranks. *unselected*: measured, but not sampled as a span; this is "
                "no loss. *lost*: check *Lost items by reason*."
            ),
            queries=(
                Query(
                    by("sum", (*_WAY, names.OUTCOME), rate(names.ITEMS)),
                    f"{_EACH_WAY}: {shown(names.OUTCOME)}",
                ),
            ),
            none="No agent has reported yet.",
            link=_RUN,
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    "health",
    "otel_mlperf health",
    "Delivery of telemetry, and the overhead of recording.",
    (RANK,),
    (_BELIEVED, COST),
)
