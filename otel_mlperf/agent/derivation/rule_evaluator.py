"""Evaluation of the warning rules against the measured values.

A warning starts when its condition has held for as long as its rule requires. It remains the same
warning as long as it goes on. It ends when the condition has not held for half a minute. A
condition that comes and goes is therefore one warning.
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
"""Minimum part of its time for which a ratio of growths must be known."""

Key = tuple[str, tuple[str, ...]]
"""Journal, and the values of the labels that the rule distinguishes by."""
Sums = dict[Key, float]


class _TotalsGrowth:
    """Recent growth of two totals."""

    def __init__(self) -> None:
        self._known: deque[tuple[float, float, float]] = deque()

    def over(self, now_s: float, over_s: float, total: float, per: float) -> tuple[float, float]:
        """Return their growth over the known part of the time; zero after a restart of a total."""
        known = self._known
        # A smaller total is a new start (a restart, a driver): the difference would be negative.
        if known and (total < known[-1][1] or per < known[-1][2]):
            known.clear()
        known.append((now_s, total, per))
        while len(known) > 1 and known[1][0] <= now_s - over_s:
            known.popleft()
        return total - known[0][1], per - known[0][2]

    @property
    def known_s(self) -> float:
        """Return the time for which they are known."""
        return self._known[-1][0] - self._known[0][0]


class RuleEvaluator:
    """Evaluator of the rules against measured values, one moment after the other."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = rules
        self._growths: dict[tuple[str, Key], _TotalsGrowth] = {}
        self._since: dict[tuple[str, Key], float] = {}
        self._held: dict[tuple[str, Key], float] = {}
        self._worst: dict[tuple[str, Key], float] = {}
        self._active: dict[tuple[str, Key], RunWarning] = {}
        self.held: list[WarningHeld] = []
        """Warnings whose condition held at the last evaluation."""

    def look(self, readings: Iterable[Reading], now_s: float, unix_ns: int) -> list[RunWarning]:
        """Evaluate the rules; return the active warnings, the oldest first."""
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
        # Must run last: a condition that held a moment ago keeps its warning. A condition that
        # comes and goes is not reported each time.
        for name in [n for n, held_s in self._held.items() if now_s - held_s >= _CLEAR_S]:
            del self._held[name]
            self._active.pop(name, None)
            self._since.pop(name, None)
            self._worst.pop(name, None)
        return list(self._active.values())

    def _holds(self, rule: Rule, key: Key, value: float, now_s: float, unix_ns: int) -> None:
        name = (rule.name, key)
        self._held[name] = now_s
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
    """Return the values of a metric by the rule's labels, summed over other labels."""
    sums: Sums = {}
    for reading in by_metric.get(part.metric.name, ()):
        labels = reading.labels
        if all(labels.get(label) in values for label, values in part.where):
            key = (reading.journal, tuple(labels.get(label, "") for label in rule.by))
            sums[key] = sums.get(key, 0.0) + reading.value
    return sums
