"""Gauges and cumulative totals published at each mark: counters, losses, open sections.

A counter or histogram of a rank is summed over its processes, including ended ones. A gauge has the
value of the process that is read last.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.cell_values import count_damaged, user_values
from otel_mlperf.agent.derivation.metric_series import Meter
from otel_mlperf.agent.model.distribution import SeriesTotal
from otel_mlperf.agent.model.events import SensorReading
from otel_mlperf.journal.journal_reader import OPEN_TYPE
from otel_mlperf.journal.layout import MAX_LABEL_SETS, Word
from otel_mlperf.tables.run_tables import InstrumentRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.agent.derivation.cell_values import CellValue
    from otel_mlperf.agent.derivation.scalars import Scalars
    from otel_mlperf.agent.model.agent_state import AgentState, RankState
    from otel_mlperf.agent.model.events import Mark
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.agent.model.table_rows import TableRows
    from otel_mlperf.journal.ring_scan import Rows
    from otel_mlperf.names import Metric
    from otel_mlperf.otlp.metric_encoding import Exemplar

_TOTALS_NS: Final = 5 * 10**9
_MAX_SERIES: Final = 2 * MAX_LABEL_SETS
"""Maximum number of labelled series of one rank. Each process of a rank has at most half as
many."""
_LOST: Final = {
    int(Word.LOST_PAYLOADS): "payloads",
    int(Word.LOST_OPEN): "open_sections",
    int(Word.LOST_ENTRIES): "names",
    int(Word.LOST_CELLS): "cells",
    int(Word.LOST_VALUES): "values",
    int(Word.INTERNAL_ERRORS): "internal",
}


class MarkTotals:
    """Publisher of gauges and cumulative totals at each mark."""

    def __init__(
        self, state: AgentState, rows: TableRows, scalars: Scalars | None, *, explicit: bool
    ) -> None:
        self._state, self._rows, self._scalars, self._explicit = state, rows, scalars, explicit

    def publish(self, mark: Mark) -> None:
        """Set all series; add totals to ``readings`` every five seconds and when a process ends."""
        state = self._state
        is_due = mark.unix_ns - state.totalled_ns >= _TOTALS_NS
        state.totalled_ns = mark.unix_ns if is_due else state.totalled_ns
        due = {
            state.rank_of(journal).instance
            for journal in state.journals.values()
            if is_due or journal.left
        }
        for (instance, _), series in _sum_over_processes(state).items():
            rank = state.ranks[instance]
            self._describe(rank, series.metric, series.scope)
            self._set(series, Meter(rank))
            for reading in _readings(series) if instance in due else ():
                self._rows.add_reading(rank.meta, reading, mark.unix_ns)
                if self._scalars:
                    self._scalars.read(rank.meta, reading, mark.unix_ns)
        for journal in state.journals.values():
            if not journal.meta.is_child:
                self._publish_state(journal, Meter(state.rank_of(journal)), mark)
        self._publish_counts()

    def _set(self, series: _RankSeries, meter: Meter) -> None:
        name, total = series.metric.name, series.total
        if total.distribution is None:
            meter.put(name, series.labels, total.value)
            return
        buckets = total.distribution.buckets(explicit=self._explicit)
        meter.put_buckets(name, series.labels, buckets, series.exemplars)

    def _describe(self, rank: RankState, metric: Metric, scope: Sequence[str]) -> None:
        """Store unit and kind of a new instrument, because table ``readings`` lacks both."""
        about = [metric.unit, metric.instrument, *scope]
        if rank.user.get(metric.name) != about:
            rank.user[metric.name] = about
            self._rows.add(
                InstrumentRow(
                    rank=rank.meta.rank,
                    restart=rank.meta.restart,
                    name=metric.name,
                    unit=metric.unit,
                    kind=metric.instrument,
                )
            )

    def _publish_counts(self) -> None:
        lost, hidden = dict[str, Counter[str]](), Counter[str]()
        for rank in self._state.ranks.values():
            if rank.live:
                lost[rank.instance] = Counter(rank.lost)
                hidden[rank.instance] = rank.redacted
        for journal in self._state.journals.values():
            instance = self._state.rank_of(journal).instance
            lost.setdefault(instance, Counter()).update(_lost(journal))
            hidden[instance] += _redacted(journal)
        for instance, reasons in lost.items():
            meter = Meter(self._state.ranks[instance])
            for reason, count in reasons.items():
                meter.set(names.JOURNAL_LOST.name, {names.ERROR_TYPE: reason}, count)
            meter.set(names.REDACTED.name, {}, hidden[instance])

    def _publish_state(self, journal: JournalState, meter: Meter, mark: Mark) -> None:
        meter.set(names.RUN_START_TIME.name, {}, journal.meta.unix_ns / 1e9)
        meter.set(names.OVERHEAD_TIME.name, {}, journal.overhead_ns / 1e9)
        # End the series of the section that was innermost at the last mark, unless it is set below.
        meter.drop(names.OPEN_AGE)
        table = np.frombuffer(journal.open, OPEN_TYPE)
        main = table[table["track"] == _main_track(table)]
        if len(main) and not journal.left:
            inner = main[np.argmax(main["start"])]
            name = journal.section(int(inner["name"]))[1]
            age = (mark.monotonic_ns - int(inner["start"])) / 1e9
            meter.set(names.OPEN_AGE.name, {names.SECTION_NAME: name}, max(0.0, age))


def keep_counted(rank: RankState, journal: JournalState) -> None:
    """Add losses, redactions and totals of an ended journal to the state of its rank."""
    for reason, count in _lost(journal).items():
        rank.lost[reason] = rank.lost.get(reason, 0) + count
    rank.redacted += _redacted(journal)
    # Gauges end with their process. Sums must not fall when a process ends, because servers would
    # detect a counter reset.
    for value in user_values(journal):
        if value.grows:
            key, _ = _place(rank, value)
            rank.totals[key] = rank.totals.get(key, SeriesTotal()).plus(value.total)


def _lost(journal: JournalState) -> dict[str, int]:
    lost = {reason: count for word, reason in _LOST.items() if (count := journal.words.get(word))}
    damaged = journal.damaged + count_damaged(journal)
    return lost | {"damaged": damaged} if damaged else lost


def _redacted(journal: JournalState) -> int:
    return journal.words.get(int(Word.REDACTED), 0) + journal.redacted


def _main_track(table: Rows) -> int:
    """Return the track of the section that started first (the run's); 0 if none is open."""
    return int(table["track"][np.argmin(table["start"])]) if len(table) else 0


class _RankSeries(NamedTuple):
    metric: Metric
    scope: tuple[str, ...]
    labels: dict[str, str]
    total: SeriesTotal
    """Sum over running and ended processes. For a gauge: the value of the process that is read
    last."""
    exemplars: list[Exemplar]


def _sum_over_processes(state: AgentState) -> dict[tuple[str, str], _RankSeries]:
    found: dict[tuple[str, str], _RankSeries] = {}
    for journal in state.journals.values():
        rank = state.rank_of(journal)
        for value in user_values(journal):
            key, labels = _place(rank, value)
            known, total = found.get((rank.instance, key)), value.total
            if value.adds_up:
                before = known.total if known else rank.totals.get(key, SeriesTotal())
                total = before.plus(total)
            newest = value.distribution.exemplar if value.distribution else None
            exemplars = (known.exemplars if known else []) + ([newest] if newest else [])
            found[rank.instance, key] = _RankSeries(
                value.metric, value.scope, labels, total, exemplars
            )
    return found


def _place(rank: RankState, value: CellValue) -> tuple[str, dict[str, str]]:
    """Return key and labels of the series for ``value``: above the limit, the overflow series."""
    name, labels = value.metric.name, value.labels
    key = _series_key(name, labels)
    if labels and key not in rank.places:
        if len(rank.places) >= _MAX_SERIES:
            labels = {names.OVERFLOW: "true"}
            return _series_key(name, labels), labels
        rank.places.add(key)
    return key, labels


def _series_key(name: str, labels: dict[str, str]) -> str:
    return "\0".join((name, *(f"{label}\0{value}" for label, value in labels.items())))


def _readings(series: _RankSeries) -> list[SensorReading]:
    name, values = series.metric.name, series.total.distribution
    numbers = {name: series.total.value}
    if values is not None:
        numbers = {f"{name}.count": float(values.count), f"{name}.sum": values.sum}
    return [SensorReading("", name, series.labels, number) for name, number in numbers.items()]
