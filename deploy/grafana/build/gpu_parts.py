"""How is one question asked of each GPU that is chosen?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboard import to
from panels import Query
from promql import WINDOW, by, rate, series, shown, where

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.names import Metric

CHOSEN: Final = where(HOST_NAME="~$host", HW_NAME="~$gpu")
DEVICE: Final = (names.HOST_NAME, names.HW_NAME)
EACH: Final = f"{shown(names.HOST_NAME)} {shown(names.HW_NAME)}"
NOT_OFFERED: Final = "Not supported by the GPU, not at this level of readings, or no GPU readings."
RUN: Final = to("training-run", "Training run")


def of(metric: Metric, more: str = "") -> str:
    """Its series of the chosen devices; ``more`` holds further matchers."""
    return series(metric, f"{CHOSEN},{more}" if more else CHOSEN)


def each(metric: Metric, more: str = "", legend: str = EACH) -> Query:
    """One line for each device."""
    return Query(by("max", DEVICE, of(metric, more)), legend)


def per_second(metric: Metric, attributes: tuple[str, ...] = (), more: str = "") -> str:
    """Growth per second of each device, and of each value of ``attributes``."""
    chosen = f"{CHOSEN},{more}" if more else CHOSEN
    return by("sum", (*DEVICE, *attributes), rate(metric, chosen))


def increase(metric: Metric, *attributes: str) -> Query:
    """What is new of a total, of each device; nothing where nothing is."""
    expr = by("sum", (*DEVICE, *attributes), f"increase({of(metric)}[{WINDOW}])")
    return Query(f"{expr} > 0", " ".join([EACH, *map(shown, attributes)]))
