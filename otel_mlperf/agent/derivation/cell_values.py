"""What do the cells of a journal hold: counters, gauges, histograms, aggregated sections?"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.model.distribution import Distribution, SeriesTotal
from otel_mlperf.agent.model.table_rows import SectionRow
from otel_mlperf.journal.layout import BUCKETS_AT, BUCKETS_IN_CELL, HistogramCell
from otel_mlperf.names import Instrument, Metric
from otel_mlperf.otlp.metric_encoding import Exemplar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mlperf.agent.model.journal_state import JournalState

_MASK: Final = (1 << 64) - 1
_OWN = {metric.name: metric for metric in names.METRICS}
_KINDS: dict[str, Instrument] = {
    "counter": "counter",
    "gauge": "gauge",
    "histogram": "histogram",
}


class CellValue(NamedTuple):
    """One series of one journal: a counter's sum, a gauge's last value, or a distribution."""

    metric: Metric
    labels: dict[str, str]
    value: float
    distribution: Distribution | None = None

    @property
    def grows(self) -> bool:
        """Whether what other processes of the rank have counted is to be added."""
        return self.metric.instrument in ("counter", "histogram")

    @property
    def total(self) -> SeriesTotal:
        """What this process adds to the rank's series."""
        return SeriesTotal(self.value, self.distribution)


class AggregateTotals(NamedTuple):
    """An aggregated section: totals so far of one name under one enclosing name and phase."""

    entry: int
    name: str
    category: str
    enclosing: str
    phase: str
    entries: int
    sum_ns: int
    min_ns: int
    max_ns: int


@functools.lru_cache(maxsize=4096)
def user_metric(name: str, unit: str, kind: str) -> Metric:
    """The description of an instrument that the program made."""
    return Metric(name, unit, _KINDS.get(kind, "gauge"), "Recorded by the program.")


class Cell(NamedTuple):
    """The words of one cell, as integers and as floats: plain lists, because most are alone."""

    words: list[int]
    floats: list[float]


def _by_entry(journal: JournalState) -> Iterator[tuple[int, list[Any], list[Cell]]]:
    """Number, content and cells of each entry that has cells and is known."""
    cells = np.frombuffer(journal.cells, np.uint64).reshape(-1, 8)
    by_entry: dict[int, list[Cell]] = {}
    for words, floats in zip(cells.tolist(), cells.view(np.float64).tolist(), strict=True):
        by_entry.setdefault(words[0], []).append(Cell(words, floats))
    for number, of_entry in by_entry.items():
        entry = journal.entries.get(number)
        if entry and entry[0] == "cell":
            yield number, entry, of_entry


def user_values(journal: JournalState) -> list[CellValue]:
    """Counters and histograms summed over their cells; gauges that were set."""
    return [
        value
        for _, (_, kind, *about), cells in _by_entry(journal)
        if kind in _KINDS and (value := _value(journal, kind, about, cells)) is not None
    ]


def _value(
    journal: JournalState, kind: str, about: list[Any], cells: list[Cell]
) -> CellValue | None:
    name, unit, pairs = about
    metric, labels = _OWN.get(name) or user_metric(name, unit, kind), dict(pairs)
    if kind == "histogram":
        values = _distribution(cells, journal)
        return CellValue(metric, labels, values.sum, values) if values.count else None
    numbers = [cell.floats[1] for cell in cells]
    if kind == "counter":
        return CellValue(metric, labels, sum(numbers))
    is_set = [number for number in numbers if not math.isnan(number)]
    return CellValue(metric, labels, is_set[-1]) if is_set else None


def _distribution(cells: Sequence[Cell], journal: JournalState) -> Distribution:
    """What the cells of one histogram come to (see ``journal.layout``)."""
    values = Distribution()
    for words, floats in cells:
        part = words[7]
        if part == HistogramCell.HEAD:
            within = floats[3:5] if floats[3] <= floats[4] else (None, None)
            values.sum, values.zeros = floats[1], words[2]
            values.min, values.max = within
        elif part == HistogramCell.EXEMPLAR:
            values.exemplar = _exemplar(floats[1], words, journal)
        elif part:
            first = (part - BUCKETS_AT) * BUCKETS_IN_CELL
            for index, count in enumerate(words[1 : 1 + BUCKETS_IN_CELL], first):
                if count:
                    values.counts[index] = count
    return values


def _exemplar(value: float, words: list[int], journal: JournalState) -> Exemplar | None:
    """The example, if it was written whole and its trace is one that is kept."""
    _, bits, time_ns, span, root, check, *_ = words
    if check != (bits ^ time_ns ^ span ^ root) & _MASK:
        return None
    meta = journal.meta
    ended, opened = journal.ended.get(root), journal.roots.get(root)
    if root == meta.run_span:
        trace = journal.run_trace
    elif ended is not None and ended.kept:
        trace = ended.root.trace
    elif opened is not None and opened.kind == "step":
        trace = opened.trace
    else:
        return None
    return Exemplar(value, meta.unix_time(time_ns), trace, span)


def aggregates(journal: JournalState) -> list[AggregateTotals]:
    """Aggregated sections that were entered, summed over threads."""
    totals = []
    for number, (_, kind, *about), cells in _by_entry(journal):
        entered = [cell.words for cell in cells if cell.words[1]]
        if kind == "aggregate" and entered:
            name, category, enclosing, phase = about
            totals.append(
                AggregateTotals(
                    number, name, category, enclosing, phase,
                    entries=sum(words[1] for words in entered),
                    sum_ns=sum(words[2] for words in entered),
                    min_ns=min(words[3] for words in entered),
                    max_ns=max(words[4] for words in entered),
                )
            )  # fmt: skip
    return totals


def aggregate_rows(journal: JournalState) -> list[dict[str, Any]]:
    """Rows of table ``sections`` for what aggregates have grown since the last ones."""
    rows, meta = [], journal.meta
    for total in aggregates(journal):
        count, sum_ns = journal.cells_stored.get(total.entry, (0, 0))
        if total.entries == count:
            continue
        journal.cells_stored[total.entry] = [total.entries, total.sum_ns]
        rows.append(
            SectionRow(
                rank=meta.rank,
                restart=meta.restart,
                phase=total.phase,
                name=total.name,
                category=total.category,
                parent=total.enclosing,
                beside=meta.is_child,
                aggregate=True,
                count=total.entries - count,
                sum_ns=total.sum_ns - sum_ns,
                # What is inside an aggregated section writes no row that could be taken off.
                self_ns=total.sum_ns - sum_ns,
                # Of all so far: cells keep no extremes of the time since the last row.
                min_ns=total.min_ns,
                max_ns=total.max_ns,
                start_ns=meta.unix_ns,
            ).as_row()
        )
    return rows
