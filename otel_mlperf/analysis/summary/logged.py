"""Values that the user's program logged: last values, counters, gauges and histograms."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.analysis.summary.summary_shapes import ProgramSeries

if TYPE_CHECKING:
    from otel_mlperf.store.table_reader import Store

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
UP_DOWN: Final = "updowncounter"
HISTOGRAM: Final = "histogram"
_UNKNOWN: Final = (COUNTER, "")
_PACKAGE: Final = {metric.name for metric in names.METRICS}
_Kinds = dict[str, tuple[str, str]]
# Totals only increase: the maximum is the last value, even if rows of one time have partial totals.
_LAST = """SELECT name, labels, sum(most), sum(newest), first(newest ORDER BY read_ns DESC, rank)
FROM (
    SELECT name, labels, rank, max(value) AS most, arg_max(value, time_ns) AS newest,
           max(time_ns) AS read_ns
    FROM readings
    WHERE starts_with(name, $before) OR list_contains($names, name)
    GROUP BY name, labels, rank, restart
) GROUP BY name, labels ORDER BY name, labels"""


def read_last(store: Store) -> dict[str, float]:
    """Return by name the last value passed to ``log()``; names are in the order of first use."""
    rows = store.rows(
        "SELECT name, arg_max(value, time_ns) FROM values GROUP BY name ORDER BY min(time_ns), name"
    )
    return dict(rows)


def read_series(store: Store) -> list[ProgramSeries]:
    """Return the counters, gauges and histograms of the user's program, one series per label set.

    Counters are summed over ranks and restarts. The value of an up-down counter is the sum of the
    last values of all processes, and the value of a gauge is the newest value of all ranks.
    OpenTelemetry instruments keep the instrument's name; the prefix ``ml.user.`` is removed from
    instruments of this package.
    """
    before, series = names.user_metric(""), dict[tuple[str, str], ProgramSeries]()
    kinds: _Kinds = {
        name: (kind, unit)
        for name, kind, unit in store.rows("SELECT DISTINCT name, kind, unit FROM instruments")
    }
    otel_names = [
        f"{name}{part}"
        for name, (kind, _) in kinds.items()
        if name not in _PACKAGE
        for part in (("", ".count", ".sum") if kind == HISTOGRAM else ("",))
    ]
    for stored, labels, *values in store.rows(_LAST, before=before, names=otel_names):
        name, part = _parted(stored, kinds)
        kind, unit = kinds.get(name, _UNKNOWN)
        known = series.get((name, labels)) or ProgramSeries(
            name=name.removeprefix(before), kind=kind, unit=unit, labels=json.loads(labels)
        )
        total, newest, last = values
        value = {GAUGE: last, UP_DOWN: newest}.get(kind, total)
        more = {"count": int(total)} if part else {"value": value}
        series[name, labels] = replace(known, **more)
    return list(series.values())


def _parted(stored: str, kinds: _Kinds) -> tuple[str, bool]:
    """Return a reading's instrument name, and whether the reading is a histogram's count."""
    # Only names of known histograms are split: the name of a counter may also end in .count.
    name, _, part = stored.rpartition(".")
    if part in ("count", "sum") and kinds.get(name, _UNKNOWN)[0] == HISTOGRAM:
        return name, part == "count"
    return stored, False


def add_up(series: list[ProgramSeries]) -> dict[str, float]:
    """Return the totals of counters and histograms, without gauges, by name over all label sets."""
    totals: dict[str, float] = {}
    for label_set in series:
        parts = {label_set.name: label_set.value}
        if label_set.kind == HISTOGRAM:
            parts = {
                f"{label_set.name}.count": float(label_set.count or 0),
                f"{label_set.name}.sum": label_set.value,
            }
        for name, value in parts.items() if label_set.kind != GAUGE else ():
            totals[name] = totals.get(name, 0.0) + value
    return totals
