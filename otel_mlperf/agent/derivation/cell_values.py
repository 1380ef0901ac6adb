"""Values of a journal's cells: counters, gauges and histograms."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.model.distribution import Distribution, SeriesTotal
from otel_mlperf.journal.layout import (
    BUCKETS_AT,
    BUCKETS_IN_CELL,
    HISTOGRAM_SCALE,
    MAX_ENTRIES,
    HistogramCell,
)
from otel_mlperf.journal.meta import LONGEST_RUN_NS
from otel_mlperf.names import Instrument, Metric
from otel_mlperf.otlp.metric_encoding import Exemplar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_mlperf.agent.model.journal_state import JournalState

_MASK: Final = (1 << 64) - 1
_MAX_COUNT: Final = 1 << 48
_MAX_BLOCKS: Final = (1100 << HISTOGRAM_SCALE) // BUCKETS_IN_CELL
"""Maximum distance of a bucket cell from the cell of value 1, for any float value."""
_OWN = {metric.name: metric for metric in names.METRICS}
_KINDS: dict[str, Instrument] = {
    "counter": "counter",
    "updowncounter": "updowncounter",
    "gauge": "gauge",
    "histogram": "histogram",
}


class CellValue(NamedTuple):
    """Value of one series in one journal: a total, the last value of a gauge, or a distribution."""

    metric: Metric
    labels: dict[str, str]
    value: float
    distribution: Distribution | None = None
    scope: tuple[str, ...] = ()
    """Name, version and schema URL of the library that created the instrument; empty if unknown."""

    @property
    def grows(self) -> bool:
        """Return whether the value is a total, to be kept after its process has ended."""
        return self.metric.instrument in ("counter", "histogram")

    @property
    def adds_up(self) -> bool:
        """Return whether values of several processes of a rank are summed (all but gauges)."""
        return self.metric.instrument != "gauge"

    @property
    def total(self) -> SeriesTotal:
        """Return the contribution of this process to the series of its rank."""
        return SeriesTotal(self.value, self.distribution)


@functools.lru_cache(maxsize=4096)
def user_metric(name: str, unit: str, kind: str) -> Metric:
    """Return the definition of a metric of the user's program, with cells of kind ``kind``."""
    return Metric(name, unit, _KINDS.get(kind, "gauge"), "Recorded by the program.")


class Cell(NamedTuple):
    """The eight words of one cell, as integers and as floats.

    The words are in lists, because most entries have a single cell, for which arrays are slower.
    """

    words: list[int]
    floats: list[float]


def cells_by_entry(journal: JournalState) -> Iterator[tuple[int, list[Any], list[Cell]]]:
    """Yield number, content and cells of each known entry that has cells.

    Cells with impossible content are omitted, because they were overwritten.
    """
    for number, of_entry in _cells(journal).items():
        entry = journal.entries.get(number)
        if entry and entry[0] == "cell" and (valid := _valid(entry[1], of_entry)):
            yield number, entry, valid


def count_damaged(journal: JournalState) -> int:
    """Return the number of overwritten cells, which have impossible content."""
    damaged = 0
    for number, of_entry in _cells(journal).items():
        entry = journal.entries.get(number)
        if number > MAX_ENTRIES or (entry and entry[0] != "cell"):
            damaged += len(of_entry)
        elif entry:
            damaged += len(of_entry) - len(_valid(entry[1], of_entry))
    return damaged


def _cells(journal: JournalState) -> dict[int, list[Cell]]:
    cells = np.frombuffer(journal.cells, np.uint64).reshape(-1, 8)
    by_entry: dict[int, list[Cell]] = {}
    for words, floats in zip(cells.tolist(), cells.view(np.float64).tolist(), strict=True):
        by_entry.setdefault(words[0], []).append(Cell(words, floats))
    return by_entry


def _valid(kind: str, cells: list[Cell]) -> list[Cell]:
    can_be = _CAN_BE[kind]
    return [cell for cell in cells if can_be(cell)]


def _can_be_aggregate(cell: Cell) -> bool:
    # LONGEST_RUN_NS is an upper bound for the counts and the times of one thread.
    return max(cell.words) < LONGEST_RUN_NS


def _can_be_counter(cell: Cell) -> bool:
    return 0.0 <= cell.floats[1] < math.inf


def _can_be_sum(cell: Cell) -> bool:
    return math.isfinite(cell.floats[1])


def _can_be_gauge(cell: Cell) -> bool:
    return not math.isinf(cell.floats[1])


def _can_be_histogram(cell: Cell) -> bool:
    words, floats = cell
    part = words[7]
    if part == HistogramCell.HEAD:
        _, total, _, minimum, maximum, *_ = floats
        is_range = minimum > maximum or -math.inf < minimum <= maximum < math.inf
        return 0.0 <= total < math.inf and words[2] < _MAX_COUNT and is_range
    if part in (0, HistogramCell.EXEMPLAR):
        return True
    is_bucket = -_MAX_BLOCKS <= part - BUCKETS_AT <= _MAX_BLOCKS
    return is_bucket and max(words[1 : 1 + BUCKETS_IN_CELL]) < _MAX_COUNT


_CAN_BE: Final[dict[str, Callable[[Cell], bool]]] = {
    "aggregate": _can_be_aggregate,
    "counter": _can_be_counter,
    "updowncounter": _can_be_sum,
    "gauge": _can_be_gauge,
    "histogram": _can_be_histogram,
}
"""Check of a cell's content, by kind of cell. A cell that fails the check was overwritten."""


def user_values(journal: JournalState) -> list[CellValue]:
    """Return the values of counters, non-empty histograms, and gauges that were ever set."""
    return [
        value
        for _, (_, kind, *about), cells in cells_by_entry(journal)
        if kind in _KINDS and (value := _value(journal, kind, about, cells)) is not None
    ]


def _value(
    journal: JournalState, kind: str, about: list[Any], cells: list[Cell]
) -> CellValue | None:
    name, unit, pairs = about
    metric, labels = _OWN.get(name) or user_metric(name, unit, kind), dict(pairs)
    fields = tuple(labels.pop(field, "") for field in names.SCOPE_FIELDS)
    scope = fields if fields[0] else ()
    if kind == "histogram":
        values = _distribution(cells, journal)
        return CellValue(metric, labels, values.sum, values, scope) if values.count else None
    numbers = [cell.floats[1] for cell in cells]
    if kind in ("counter", "updowncounter"):
        return CellValue(metric, labels, sum(numbers), scope=scope)
    is_set = [number for number in numbers if not math.isnan(number)]
    return CellValue(metric, labels, is_set[-1], scope=scope) if is_set else None


def _distribution(cells: Sequence[Cell], journal: JournalState) -> Distribution:
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
    _, bits, time_ns, span, root, check, *_ = words
    meta = journal.meta
    if check != (bits ^ time_ns ^ span ^ root) & _MASK or time_ns >= meta.latest_ns:
        return None
    ended, opened = journal.ended.get(root), journal.roots.get(root)
    if root == meta.run_span:
        trace = journal.run_trace
    elif ended is not None and ended.kept:
        trace = ended.root.trace
    elif opened is not None and opened.kind in ("step", "foreign") and not opened.is_unsampled:
        trace = opened.trace
    else:
        return None
    return Exemplar(value, meta.unix_time(time_ns), trace, span)
