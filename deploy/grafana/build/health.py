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
    "Can it be believed?",
    (
        LOST,
        Panel(
            kind="stat",
            title="Unexplained",
            question=(
                "Does every item have its fate? Created minus delivered, rolled up, left out, lost "
                "and pending, the least of five minutes. Anything but zero is a fault of "
                "otel_mlperf: please report it with agent.log."
            ),
            queries=(Query(f"sum(min_over_time(abs({_unexplained()})[5m:15s]))", "items"),),
            limits=(1,),
            decimals=0,
            none="No agent has counted yet.",
            link=_RUN,
            width=3,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Pending",
            question=(
                "Is something still on its way? Items that wait for a server. Growing: the server "
                "does not answer or is too slow; they are kept on disk until it does."
            ),
            queries=(
                Query(
                    by("sum", _WAY, series(names.ITEMS_PENDING, where(DESTINATION="otlp"))),
                    shown(names.SIGNAL),
                ),
            ),
            decimals=0,
            none="No agent has counted yet.",
            link=_RUN,
            width=6,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Overhead",
            question=(
                "What does measuring cost the training process? Recording time as a share of wall "
                "time, the most of all ranks. Red: above 1 %: there is a very hot span; give it "
                "aggregate=True."
            ),
            queries=(Query(f"max({rate(names.OVERHEAD_TIME)})", "of the time"),),
            unit="percentunit",
            limits=(0.005, 0.01),
            none="No process has said.",
            link=_RUN,
            width=6,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Ranks that report",
            question=(
                "Does every rank report? Ranks whose newest metrics are less than five minutes "
                "old. Fewer than the job has: look whether agents run there, with otel-mlperf "
                "doctor."
            ),
            queries=(
                Query(
                    "count(" + by("max", (names.RANK,), series(names.RUN_START_TIME)) + ")", "ranks"
                ),
            ),
            decimals=0,
            none="None does: the run has ended, or nothing arrives.",
            link=to("ranks", "Ranks"),
            width=6,
            height=4,
        ),
        Panel(
            kind="timeseries",
            title="Telemetry lost",
            question=(
                "Why is something missing? Lost items by destination and reason. *ring_full*: the "
                "agent did not get CPU. *rejected* or *unauthorized*: read the agent's log and run "
                "otel-mlperf doctor. Of all ranks, whichever are chosen."
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
            none="Nothing was lost.",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Fate of items",
            question=(
                "What became of everything that was recorded? Items per second by outcome. "
                "*unselected* is measured, and by the policy not traced: no loss."
            ),
            queries=(
                Query(
                    by("sum", (*_WAY, names.OUTCOME), rate(names.ITEMS)),
                    f"{_EACH_WAY}: {shown(names.OUTCOME)}",
                ),
            ),
            none="No agent has counted yet.",
            link=_RUN,
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    "health",
    "otel_mlperf health",
    "Is every item of telemetry accounted for, and what does measuring cost?",
    (RANK,),
    (_BELIEVED, COST),
)
