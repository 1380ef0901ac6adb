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
_NONE: Final = "No requests are recorded: om.request."
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
                "What share of the run's time is productive? Time of successful training and "
                "prediction steps, without compilation and waits for training data, as a share of "
                "the last 15 minutes; mean of the selected ranks. Red: less than half; check "
                "*Where a step goes* and *Validation and checkpoint*. Steps repeated after a "
                "restart count as productive here, but not in `otel-mlperf summary`."
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
            none="No training or prediction step has ended.",
            link=to("ranks", "Ranks"),
        ),
        Panel(
            kind="timeseries",
            title="Request duration",
            question=(
                "How long do requests take? p50, p95 and p99 of the request duration by name, over "
                "the selected ranks; 95 % of requests were faster than p95. p99 far above p50: "
                "some requests wait for the device, a lock or each other; open one in Jaeger. All "
                "lines rise: more concurrent requests than the program can serve."
            ),
            queries=(_quantile(0.5), _quantile(0.95), _quantile(0.99)),
            unit="s",
            none=_NONE,
            link=to("host", "CPU of the host"),
        ),
        Panel(
            kind="timeseries",
            title="Requests within the duration limit",
            question=(
                "Are requests fast enough? Share of requests with a duration limit (`within_s`) "
                "that met the limit and did not fail, by name, over the selected ranks. Red: less "
                "than 95 %; check in *Request duration* whether all requests are slower or only a "
                "few."
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
            none="No request has a duration limit: within_s, or the setting request_within_s.",
            link=to("host", "CPU of the host"),
        ),
        Panel(
            kind="timeseries",
            title="Requests per second",
            question=(
                "How many requests complete? Completed requests per second by name, summed over "
                "the selected ranks. If more requests arrive than complete, they queue and "
                "*Request duration* keeps rising."
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
