"""Which rules, by which a run is watched live, held at some time in it?

From the readings of the run folder, as the agent judges them while the run goes on: a level must
hold for its time, a growth is over its time. Waiting for data and lost telemetry are not among the
readings, and a device that is lost may have none: other findings judge these.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.findings.finding import Finding, Where
from otel_mlperf.findings.finding_table import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.findings.finding_row import MeasuredSeries, Rule
    from otel_mlperf.store.table_reader import Store

_ELSEWHERE: Final = frozenset({"data_loading", "telemetry_lost", "gpu_lost"})
_ENOUGH: Final = 0.5
"""Part of its time for which the growth of a ratio must be known, unless the run was shorter."""
_Labels = dict[str, list[str]]
"""The label sets that were read, as JSON, by metric."""

# Readings of the node have no rank, and NULL equals nothing: -1 stands for it.
_SUMS: Final = """SELECT coalesce(rank, -1) AS rank, restart, time_ns, sum(value) AS value,
    list_extract(${what}_keys, list_position(${what}_labels, labels)) AS key
    FROM readings WHERE name = ${what} AND list_contains(${what}_labels, labels) GROUP BY ALL"""
_ALONE: Final = f"WITH known AS (SELECT *, 1.0 AS per FROM ({_SUMS.format(what='measured')}))"
_RATIO: Final = (
    f"WITH known AS (SELECT m.*, p.value AS per FROM ({_SUMS.format(what='measured')}) m "
    f"JOIN ({_SUMS.format(what='per')}) p USING (rank, restart, time_ns, key) WHERE p.value > 0)"
)
_OF_ONE: Final = "PARTITION BY rank, restart, key ORDER BY time_ns"
# Readings in a row in which the condition holds share the number of those before in which it did
# not: that is their stretch.
_LEVEL: Final = f"""judged AS (SELECT rank, restart, key, time_ns, value / per AS value,
    value / per {{sign}} $threshold AS holds FROM known),
stretches AS (SELECT *, sum((NOT holds)::INTEGER) OVER ({_OF_ONE}) AS stretch FROM judged),
held AS (SELECT rank, restart, key, (max(time_ns) - min(time_ns)) / 1e9 AS held_s, count(*) AS many,
    {{worst}}(value) AS value FROM stretches WHERE holds GROUP BY rank, restart, key, stretch),
whole AS (SELECT rank, restart, key, count(*) AS of_all FROM judged GROUP BY ALL)
SELECT rank, key, {{worst}}(value), max(held_s) FROM held JOIN whole USING (rank, restart, key)
WHERE held_s >= $for_s OR (many = of_all AND many > 1) GROUP BY rank, key ORDER BY rank, key"""
# A process that begins anew counts from zero again: what has shrunk since the window began has not
# grown, and the next reading tells more.
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
    """A rule that held, with the worst value and for how long."""

    rule: Rule
    rank: int | None
    labels: dict[str, str]
    value: float
    held_s: float


def find_ended_rules(numbers: RunNumbers) -> list[Finding]:
    """One for each rule, rank and device, however often it came and went."""
    rules = [rule for rule in RULES if rule.of_ended and rule.id not in _ELSEWHERE]
    labels = _read_labels(numbers.store, rules)
    return [_finding(held) for rule in rules for held in _judge(numbers.store, rule, labels)]


def _read_labels(store: Store, rules: Iterable[Rule]) -> _Labels:
    series = [part for rule in rules for part in (rule.measured, rule.per) if part is not None]
    by_metric: _Labels = defaultdict(list)
    for name, labels in store.rows(
        "SELECT DISTINCT name, labels FROM readings WHERE list_contains($names, name) "
        "ORDER BY name, labels",
        names=sorted({part.metric.name for part in series}),
    ):
        by_metric[name].append(labels)
    return by_metric


def _judge(store: Store, rule: Rule, labels: _Labels) -> list[_Held]:
    """On which ranks and devices a rule held."""
    values = _chosen("measured", rule.measured, rule.by, labels)
    if rule.per is not None:
        values |= _chosen("per", rule.per, rule.by, labels)
    if not all(values.values()):  # one of them was never read
        return []
    values["threshold"] = rule.threshold
    words = {"sign": _SIGNS[rule.comparison], "worst": _WORST[rule.comparison]}
    known = _ALONE if rule.per is None else _RATIO
    if rule.over_s:
        words["growth"] = _GROWN if rule.per is None else f"{_GROWN} / nullif({_PER_GROWN}, 0)"
        enough = 0.0 if rule.per is None else _ENOUGH
        values |= {"over_ns": int(rule.over_s * 1e9), "enough": enough}
        sql = f"{known}, {_GROWTH.format(**words)}"
    else:
        values["for_s"] = rule.for_s
        sql = f"{known}, {_LEVEL.format(**words)}"
    return [
        _Held(rule, None if rank < 0 else rank, dict(json.loads(key)), value, held_s)
        for rank, key, value, held_s in store.rows(sql, **values)
    ]


def _chosen(
    what: str, series: MeasuredSeries, by: Sequence[str], labels: _Labels
) -> dict[str, Any]:
    """The label sets of a series, and beside each the labels that the rule distinguishes by."""
    sets = [(text, json.loads(text or "{}")) for text in labels.get(series.metric.name, ())]
    mine = [
        (text, told)
        for text, told in sets
        if all(told.get(label) in wanted for label, wanted in series.where)
    ]
    return {
        what: series.metric.name,
        f"{what}_labels": [text for text, _ in mine],
        f"{what}_keys": [
            json.dumps([(label, told.get(label, "")) for label in by]) for _, told in mine
        ],
    }


def _finding(held: _Held) -> Finding:
    rule, labels = held.rule, held.labels
    words = {label.replace(".", "_"): text for label, text in labels.items()}
    return Finding(
        id=rule.id,
        severity=rule.severity,
        summary=rule.summary.format(value=held.value, **words) + _time_words(held),
        action=rule.action,
        evidence={"value": held.value, "threshold": rule.threshold, "held_s": held.held_s},
        where=Where(
            rank=held.rank, device=labels.get(names.HW_NAME) or labels.get(names.MOUNTPOINT, "")
        ),
    )


def _time_words(held: _Held) -> str:
    # The worst of a run of days is easily read as all of it.
    rule, seconds = held.rule, round(held.held_s)
    is_event = rule.over_s and "{value" not in rule.summary  # when it came is not known better
    if not seconds or is_event:
        return ""
    time = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds} s"
    return f" (within {time})" if rule.over_s else f" (for {time})"
