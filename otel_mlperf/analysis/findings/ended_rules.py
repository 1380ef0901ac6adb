"""Findings of live-warning rules whose condition was met at some time during a finished run.

The rules are evaluated on the readings of the run folder, as the agent evaluates live rules. A
level must be beyond its threshold for the rule's duration, and growth is measured over that
duration. Rules that other findings cover are skipped, e.g. for lost devices, which might have no
readings, or for data waits, which are not in readings.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from otel_mlperf.analysis.findings.cpu_shares import read_cpu_shares
from otel_mlperf.analysis.findings.live_warnings import device_of
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.findings.finding_row import MeasuredSeries, Rule
    from otel_mlperf.store.table_reader import Store

_ELSEWHERE: Final = frozenset(
    {"data_loading", "collectives", "telemetry_lost", "gpu_idle", "gpu_lost", "requests_late"}
)
_ENOUGH: Final = 0.5
"""Minimum fraction of a ratio rule's duration that readings must cover. If the run is shorter than
that duration: minimum fraction of the run."""

# Readings of the node have no rank. -1 replaces NULL, because a join never matches NULL to NULL.
_SUMS: Final = """SELECT coalesce(rank, -1) AS rank, restart, time_ns, sum(value) AS value,
    list_extract(${what}_keys, list_position(${what}_labels, labels)) AS key
    FROM readings WHERE name = ${what} AND list_contains(${what}_labels, labels) GROUP BY ALL"""
_ALONE: Final = f"WITH known AS (SELECT *, 1.0 AS per FROM ({_SUMS.format(what='measured')}))"
_RATIO: Final = (
    f"WITH known AS (SELECT m.*, p.value AS per FROM ({_SUMS.format(what='measured')}) m "
    f"JOIN ({_SUMS.format(what='per')}) p USING (rank, restart, time_ns, key) WHERE p.value > 0)"
)
_OF_ONE: Final = "PARTITION BY rank, restart, key ORDER BY time_ns"
# A stretch of readings that meet the condition is identified by the number of earlier readings that
# do not: that number is constant within the stretch.
_LEVEL: Final = f"""judged AS (SELECT rank, restart, key, time_ns, value / per AS value,
    value / per {{sign}} $threshold AS holds FROM known),
stretches AS (SELECT *, sum((NOT holds)::INTEGER) OVER ({_OF_ONE}) AS stretch FROM judged),
held AS (SELECT rank, restart, key, (max(time_ns) - min(time_ns)) / 1e9 AS held_s, count(*) AS many,
    {{worst}}(value) AS value FROM stretches WHERE holds GROUP BY rank, restart, key, stretch),
whole AS (SELECT rank, restart, key, count(*) AS of_all FROM judged GROUP BY ALL)
SELECT rank, key, {{worst}}(value), max(held_s) FROM held JOIN whole USING (rank, restart, key)
WHERE held_s >= $for_s OR (many = of_all AND many > 1) GROUP BY rank, key ORDER BY rank, key"""
# Counters of a restarted process start at zero: a reading whose value has shrunk since the start of
# its window is skipped.
_GROWTH: Final = f"""first AS (SELECT *, first_value(value) OVER time AS value_before,
    first_value(per) OVER time AS per_before, first_value(time_ns) OVER time AS since_ns
    FROM known WINDOW time AS ({_OF_ONE} RANGE BETWEEN $over_ns PRECEDING AND CURRENT ROW)),
grown AS (SELECT rank, key, time_ns - since_ns AS over_ns, {{growth}} AS value FROM first
    WHERE value >= value_before AND per >= per_before)
SELECT rank, key, max(value), max(over_ns) / 1e9 FROM grown
WHERE over_ns >= $enough * least($over_ns, (SELECT max(time_ns) - min(time_ns) FROM known))
GROUP BY rank, key HAVING max(value) {{sign}} $threshold ORDER BY rank, key"""
_GROWN: Final = "(value - value_before)"
_PER_GROWN: Final = "(per - per_before)"
_SIGNS: Final = {"above": ">", "below": "<"}
_WORST: Final = {"above": "max", "below": "min"}


class _Held(NamedTuple):
    rule: Rule
    rank: int | None
    labels: dict[str, str]
    value: float
    held_s: float


class _Extremes(NamedTuple):
    labels: str
    rank: int
    restart: int
    least: float
    most: float


class _Bounds(NamedTuple):
    least: float
    most: float


_ONE: Final = _Bounds(1.0, 1.0)
_Key = tuple[int, int, str]
_Read = dict[str, list[_Extremes]]


def find_ended_rules(numbers: RunNumbers) -> list[Finding]:
    """Return one finding for each rule, rank and label set for which the condition was ever met."""
    rules = [rule for rule in RULES if rule.of_ended and rule.id not in _ELSEWHERE]
    read = _read_extremes(numbers.store, rules)
    return [
        _with_gain(_finding(held), numbers)
        for rule in rules
        if _may_have_held(rule, read)
        for held in _judge(numbers.store, rule, read)
    ]


def _with_gain(finding: Finding, numbers: RunNumbers) -> Finding:
    if finding.id != "cpu_throttled":
        return finding
    ranks = read_cpu_shares(numbers).ranks
    waits = [one.main_waits for one in ranks if finding.where.rank in (None, one.rank)]
    if not waits:
        return finding
    return replace(finding, gain=Gain(low=max(waits) / 2, high=max(waits)))


def _read_extremes(store: Store, rules: Iterable[Rule]) -> _Read:
    series = [part for rule in rules for part in (rule.measured, rule.per) if part is not None]
    by_metric: _Read = defaultdict(list)
    for name, *extremes in store.rows(
        "SELECT name, labels, coalesce(rank, -1), restart, min(value), max(value) FROM readings "
        "WHERE name IN (SELECT unnest($names)) GROUP BY ALL ORDER BY ALL",
        names=sorted({part.metric.name for part in series}),
    ):
        by_metric[name].append(_Extremes(*extremes))
    return by_metric


def _may_have_held(rule: Rule, read: _Read) -> bool:
    """Return whether the rule's condition can have been met, given the extremes of its readings.

    If it cannot, the query of all of these readings is skipped.
    """
    measured = _bounds(rule, rule.measured, read)
    per = _bounds(rule, rule.per, read) if rule.per is not None else dict.fromkeys(measured, _ONE)
    return any(_is_possible(rule, of, per[key]) for key, of in measured.items() if key in per)


def _is_possible(rule: Rule, measured: _Bounds, per: _Bounds) -> bool:
    # Comparisons are negated so that NaN counts as possible: then the rows decide.
    if rule.over_s:
        enough = 0.0 if rule.per is not None else rule.threshold
        return not measured.most - measured.least <= enough
    if rule.comparison == "above":
        return not measured.most <= rule.threshold * max(per.least, 0.0)
    return not measured.least >= rule.threshold * per.most


def _bounds(rule: Rule, series: MeasuredSeries, read: _Read) -> dict[_Key, _Bounds]:
    bounds: dict[_Key, _Bounds] = {}
    keys = _keys(series, rule.by, read)
    for one in read.get(series.metric.name, ()):
        if one.labels in keys:
            key = (one.rank, one.restart, keys[one.labels])
            so_far = bounds.get(key, _Bounds(0.0, 0.0))
            bounds[key] = _Bounds(so_far.least + one.least, so_far.most + one.most)
    return bounds


def _judge(store: Store, rule: Rule, read: _Read) -> list[_Held]:
    values = _chosen("measured", rule.measured, rule.by, read)
    if rule.per is not None:
        values |= _chosen("per", rule.per, rule.by, read)
    values["threshold"] = rule.threshold
    sql_parts = {"sign": _SIGNS[rule.comparison], "worst": _WORST[rule.comparison]}
    known = _ALONE if rule.per is None else _RATIO
    if rule.over_s:
        sql_parts["growth"] = _GROWN if rule.per is None else f"{_GROWN} / nullif({_PER_GROWN}, 0)"
        enough = 0.0 if rule.per is None else _ENOUGH
        values |= {"over_ns": int(rule.over_s * 1e9), "enough": enough}
        sql = f"{known}, {_GROWTH.format(**sql_parts)}"
    else:
        values["for_s"] = rule.for_s
        sql = f"{known}, {_LEVEL.format(**sql_parts)}"
    return [
        _Held(rule, None if rank < 0 else rank, dict(json.loads(key)), value, held_s)
        for rank, key, value, held_s in store.rows(sql, **values)
    ]


def _chosen(what: str, series: MeasuredSeries, by: Sequence[str], read: _Read) -> dict[str, Any]:
    keys = _keys(series, by, read)
    return {
        what: series.metric.name,
        f"{what}_labels": list(keys),
        f"{what}_keys": list(keys.values()),
    }


def _keys(series: MeasuredSeries, by: Sequence[str], read: _Read) -> dict[str, str]:
    """Map each label set that ``series`` selects to its values of the labels ``by``, as JSON."""
    keys: dict[str, str] = {}
    for text in dict.fromkeys(one.labels for one in read.get(series.metric.name, ())):
        parsed = json.loads(text or "{}")
        if all(parsed.get(label) in wanted for label, wanted in series.where):
            keys[text] = json.dumps([(label, parsed.get(label, "")) for label in by])
    return keys


def _finding(held: _Held) -> Finding:
    rule = held.rule
    return Finding(
        id=rule.id,
        severity=rule.severity,
        summary=rule.format_summary(held.value, held.labels) + _duration_text(held),
        action=rule.action,
        evidence={"value": held.value, "threshold": rule.threshold, "held_s": held.held_s},
        where=Where(rank=held.rank, device=device_of(held.labels)),
    )


def _duration_text(held: _Held) -> str:
    # Without a duration, the worst value of a run of days could be read as its typical value.
    rule, seconds = held.rule, round(held.held_s)
    is_event = rule.over_s and "{value" not in rule.summary  # the time of the event is unknown
    if not seconds or is_event:
        return ""
    time = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds} s"
    return f" (within {time})" if rule.over_s else f" (for {time})"
