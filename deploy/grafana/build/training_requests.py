"""What is the run's time worth, and how long do requests take?"""

from __future__ import annotations

from typing import Final

from dashboard import to
from panels import Panel, Query, Row
from promql import by, label, rate, series, shown, where

from otel_mlperf import names

_NAME: Final = (names.SECTION_NAME,)
_EACH: Final = shown(names.SECTION_NAME)
_REQUESTS: Final = where(SECTION_CATEGORY=names.REQUEST)
_NONE: Final = "The program makes no requests: om.request."
_LONG: Final = "15m"


def _quantile(share: float) -> Query:
    durations = by("sum", _NAME, rate(names.SECTION_DURATION, _REQUESTS))
    return Query(f"histogram_quantile({share}, {durations})", f"{_EACH} p{share * 100:.0f}")


REQUESTS: Final = Row(
    "Goodput and requests",
    (
        Panel(
            kind="timeseries",
            title="Goodput",
            question=(
                "Which part of its time does the run spend on steps that bring it forward? Without "
                "waits for data and compilation, mean of the chosen ranks, over 15 minutes. Red: "
                "less than half. Look at *Where a step goes* and at *Validation and checkpoint*; "
                "steps that a restart has to make again count here, `otel-mlperf summary` knows."
            ),
            queries=(
                Query(
                    f"sum({rate(names.RUN_PRODUCTIVE, window=_LONG)}) "
                    f"/ count({series(names.RUN_PRODUCTIVE)})",
                    "goodput",
                ),
            ),
            unit="percentunit",
            limits=(0.5, 0.8),
            falls=True,
            most=1,
            none="No step of the training or of a prediction has ended.",
            link=to("ranks", "Ranks"),
        ),
        Panel(
            kind="timeseries",
            title="Time of requests",
            question=(
                "How long do requests take, and the slow ones? Median, p95 and p99 by name. A p99 "
                "far above the median: some wait, for the device, a lock or each other; open one "
                "in Jaeger. Everything rising together: there are more at once than it can do."
            ),
            queries=(_quantile(0.5), _quantile(0.95), _quantile(0.99)),
            unit="s",
            none=_NONE,
            link=to("host", "CPU of the host"),
        ),
        Panel(
            kind="timeseries",
            title="Requests within their bound",
            question=(
                "Are requests as fast as they are to be? Of those that have a bound (`within_s`), "
                "the share that took no longer and did not fail. Red: less than 95 %. Look at "
                "*Time of requests* for whether all are slower or few."
            ),
            queries=(
                Query(
                    by("sum", _NAME, rate(names.SECTION_WITHIN, _REQUESTS))
                    + " / "
                    + by("sum", _NAME, rate(names.SECTION_BOUNDED, _REQUESTS)),
                    _EACH,
                ),
            ),
            unit="percentunit",
            limits=(0.95, 0.99),
            falls=True,
            most=1,
            none="No request has a bound: within_s, or the setting request_within_s.",
            link=to("host", "CPU of the host"),
        ),
        Panel(
            kind="timeseries",
            title="Requests per second",
            question=(
                "How many requests end per second, all chosen ranks together? Compare with *Time "
                "of requests*: where more come than end, they queue, and take longer and longer."
            ),
            queries=(
                Query(
                    f"sum by ({label(names.SECTION_NAME)}) "
                    f"(histogram_count({rate(names.SECTION_DURATION, _REQUESTS)}))",
                    _EACH,
                ),
            ),
            unit="reqps",
            none=_NONE,
            link=to("host", "CPU of the host"),
        ),
    ),
    collapsed=True,
)
