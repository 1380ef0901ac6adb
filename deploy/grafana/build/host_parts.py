"""How is one question asked of each host or rank?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboard import to
from panels import Panel, Query
from promql import by, rate, series, shown, where

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.names import Metric

CHOSEN: Final = where(HOST_NAME="~$host")
EACH_HOST: Final = (names.HOST_NAME,)
SHOWN_HOST: Final = shown(names.HOST_NAME)
EACH_RANK: Final = f"rank {shown(names.RANK)}"
RUN: Final = to("training-run", "Training run")
RANKS: Final = to("ranks", "Ranks")
NOT_READ: Final = "No host readings, or not at this level of readings."


def and_more(more: str) -> str:
    """Matchers of the chosen hosts, and further ones."""
    return f"{CHOSEN},{more}" if more else CHOSEN


def now(metric: Metric, *attributes: str, more: str = "", legend: str = "") -> Query:
    """A reading, a line for each host and label."""
    legend = legend or " ".join([SHOWN_HOST, *map(shown, attributes)])
    return Query(by("max", (*EACH_HOST, *attributes), series(metric, and_more(more))), legend)


def growth(metric: Metric, *attributes: str, more: str = "", legend: str = "") -> Query:
    """What grows in a second, a line for each host and label."""
    legend = legend or " ".join([SHOWN_HOST, *map(shown, attributes)])
    return Query(by("sum", (*EACH_HOST, *attributes), rate(metric, and_more(more))), legend)


def by_rank(metric: Metric, *attributes: str, more: str = "", grows: bool = False) -> Query:
    """A reading of the processes, a line for each rank and label."""
    inner = rate(metric, and_more(more)) if grows else series(metric, and_more(more))
    expr = by("sum", (names.RANK, *attributes), inner)
    return Query(expr, " ".join([EACH_RANK, *map(shown, attributes)]))


def panel(
    title: str,
    question: str,
    *queries: Query,
    unit: str = "short",
    none: str = NOT_READ,
    link: tuple[str, str] = RUN,
    limits: tuple[float, ...] = (),
    stacked: bool = False,
) -> Panel:
    """A course over time, three beside each other."""
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
