"""Evaluation of the warning rules against measured values.

A warning starts if the condition of a rule has been true for the time that the rule requires. The
warning ends after the condition has been false for 30 s, so that an intermittent condition is a
single warning.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.model.events import WarningHeld
from otel_mlperf.findings.finding_table import RULES
from otel_mlperf.journal.bulletin import Reading, RunWarning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.findings.finding_row import MeasuredSeries, Rule

_CLEAR_S: Final = 30.0
_ENOUGH: Final = 0.5
"""Minimum share of a rule's time window that must be covered to compute a ratio of growths."""

Key = tuple[str, tuple[str, ...]]
"""Journal name, and the values of the labels by which the rule groups."""
Sums = dict[Key, float]


class _TotalsGrowth:
    """Growth of two totals (numerator and denominator of a ratio) over a recent time window."""

    def __init__(self) -> None:
        self._totals: deque[tuple[float, float, float]] = deque()

    def over(self, now_s: float, over_s: float, total: float, per: float) -> tuple[float, float]:
        """Return the growth of ``total`` and ``per`` in the last ``over_s`` seconds.

        Stores both values. After a restart of either total, both growths are 0.
        """
        totals = self._totals
        # A smaller total means that its source restarted: the difference would be negative.
        if totals and (total < totals[-1][1] or per < totals[-1][2]):
            totals.clear()
        totals.append((now_s, total, per))
        while len(totals) > 1 and totals[1][0] <= now_s - over_s:
            totals.popleft()
        return total - totals[0][1], per - totals[0][2]

    @property
    def known_s(self) -> float:
        return self._totals[-1][0] - self._totals[0][0]


class RuleEvaluator:
    """Evaluator of the warning rules, called at intervals with the current measured values."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = rules
        self._growths: dict[tuple[str, Key], _TotalsGrowth] = {}
        self._since: dict[tuple[str, Key], float] = {}
        self._last_true_s: dict[tuple[str, Key], float] = {}
        self._worst: dict[tuple[str, Key], float] = {}
        self._active: dict[tuple[str, Key], RunWarning] = {}
        self.held: list[WarningHeld] = []
        """Warnings whose condition was true at the last evaluation."""

    def look(self, readings: Iterable[Reading], now_s: float, unix_ns: int) -> list[RunWarning]:
        """Evaluate the rules at ``now_s`` (monotonic); return all active warnings, oldest first."""
        self.held = []
        by_metric: dict[str, list[Reading]] = {}
        for reading in readings:
            by_metric.setdefault(reading.metric, []).append(reading)
        for rule in self._rules:
            for key, value in self._values(rule, by_metric, now_s).items():
                if rule.holds(value):
                    self._holds(rule, key, value, now_s, unix_ns)
                else:
                    self._since.pop((rule.name, key), None)
                    if (rule.name, key) not in self._active:
                        self._worst.pop((rule.name, key), None)
        # Must run last: a warning whose condition was true within _CLEAR_S stays active, so that an
        # intermittent condition is reported once.
        for name in [n for n, last_s in self._last_true_s.items() if now_s - last_s >= _CLEAR_S]:
            del self._last_true_s[name]
            self._active.pop(name, None)
            self._since.pop(name, None)
            self._worst.pop(name, None)
        return list(self._active.values())

    def _holds(self, rule: Rule, key: Key, value: float, now_s: float, unix_ns: int) -> None:
        name = (rule.name, key)
        self._last_true_s[name] = now_s
        since_s = self._since.setdefault(name, now_s)
        worse = max if rule.comparison == "above" else min
        worst = self._worst[name] = worse(self._worst.get(name, value), value)
        if name not in self._active:
            if now_s - since_s < rule.for_s:
                return
            began_ns = unix_ns - int((now_s - since_s) * 1e9)
            self._active[name] = _warning(rule, key, value, began_ns)
        warning = self._active[name]
        self.held.append(
            WarningHeld(
                rule.id, warning.journal, warning.labels, warning.since_unix_ns, unix_ns, worst,
                rule.threshold,
            )
        )  # fmt: skip

    def _values(self, rule: Rule, by_metric: dict[str, list[Reading]], now_s: float) -> Sums:
        measured = _sums(rule, rule.measured, by_metric)
        per = _sums(rule, rule.per, by_metric) if rule.per is not None else {}
        values: Sums = {}
        for key, value in measured.items():
            whole = per.get(key, 0.0)
            if rule.over_s:
                growth = self._growths.setdefault((rule.name, key), _TotalsGrowth())
                value, whole = growth.over(now_s, rule.over_s, value, whole)  # noqa: PLW2901
                if rule.per is not None and growth.known_s < rule.over_s * _ENOUGH:
                    continue
            if rule.per is None:
                values[key] = value
            elif whole > 0:
                values[key] = value / whole
        return values


def _warning(rule: Rule, key: Key, value: float, began_ns: int) -> RunWarning:
    journal, labels = key[0], dict(zip(rule.by, key[1], strict=True))
    summary = rule.format_summary(value, labels)
    return RunWarning(rule.name, journal, labels, value, began_ns, summary, rule.action)


def _sums(rule: Rule, part: MeasuredSeries, by_metric: dict[str, list[Reading]]) -> Sums:
    sums: Sums = {}
    for reading in by_metric.get(part.metric.name, ()):
        labels = reading.labels
        if all(labels.get(label) in values for label, values in part.where):
            key = (reading.journal, tuple(labels.get(label, "") for label in rule.by))
            sums[key] = sums.get(key, 0.0) + reading.value
    return sums
