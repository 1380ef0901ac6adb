"""What do the cells of a journal hold: counters, gauges, histograms, aggregated sections?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.distributions import Distribution, distribution
from otel_mlperf.names import Instrument, Metric

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.agent.state import JournalState

_OWN = {metric.name: metric for metric in names.METRICS}
_KINDS: dict[str, Instrument] = {
    "counter": "counter",
    "gauge": "gauge",
    "histogram": "histogram",
}


class Value(NamedTuple):
    """One series of one journal: a counter's sum, a gauge's last value, or a distribution."""

    metric: Metric
    labels: dict[str, str]
    value: float
    distribution: Distribution | None = None

    @property
    def grows(self) -> bool:
        """Whether what other processes of the rank have counted is to be added."""
        return self.metric.instrument in ("counter", "histogram")


class Aggregate(NamedTuple):
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


def user_metric(name: str, unit: str, kind: str) -> Metric:
    """The description of an instrument that the program made."""
    return Metric(name, unit, _KINDS.get(kind, "gauge"), "Recorded by the program.")


def _by_entry(journal: JournalState) -> Iterator[tuple[int, list[Any], NDArray[np.uint64]]]:
    """Number, content and cells of each entry that has cells and is known."""
    cells = np.frombuffer(journal.cells, np.uint64).reshape(-1, 8)
    if not len(cells):
        return
    cells = cells[np.argsort(cells[:, 0], kind="stable")]
    numbers, first = np.unique(cells[:, 0], return_index=True)
    for number, of_entry in zip(numbers.tolist(), np.split(cells, first[1:]), strict=True):
        entry = journal.entries.get(number)
        if entry and entry[0] == "cell":
            yield number, entry, of_entry


def user_values(journal: JournalState) -> list[Value]:
    """Counters and histograms summed over their cells; gauges that were set."""
    return [
        value
        for _, (_, kind, *about), cells in _by_entry(journal)
        if kind in _KINDS and (value := _value(journal, kind, about, cells)) is not None
    ]


def _value(
    journal: JournalState, kind: str, about: list[Any], cells: NDArray[np.uint64]
) -> Value | None:
    name, unit, pairs = about
    metric, labels = _OWN.get(name) or user_metric(name, unit, kind), dict(pairs)
    if kind == "histogram":
        found = distribution(cells, journal)
        return Value(metric, labels, found.sum, found) if found.count else None
    numbers = cells[:, 1].copy().view(np.float64)
    if kind == "counter":
        return Value(metric, labels, float(numbers.sum()))
    is_set = numbers[~np.isnan(numbers)]
    return Value(metric, labels, float(is_set[-1])) if len(is_set) else None


def aggregates(journal: JournalState) -> list[Aggregate]:
    """Aggregated sections that were entered, summed over threads."""
    found = []
    for number, (_, kind, *about), cells in _by_entry(journal):
        entered = cells[cells[:, 1] != 0]
        if kind == "aggregate" and len(entered):
            count, total = entered[:, 1].sum(), entered[:, 2].sum()
            times = int(count), int(total), int(entered[:, 3].min()), int(entered[:, 4].max())
            name, category, enclosing, phase = about
            found.append(Aggregate(number, name, category, enclosing, phase, *times))
    return found


def aggregate_rows(journal: JournalState) -> list[dict[str, Any]]:
    """Rows of table ``sections`` for what aggregates have grown since the last ones."""
    rows, meta = [], journal.meta
    for one in aggregates(journal):
        count, total = journal.cells_stored.get(one.entry, (0, 0))
        if one.entries == count:
            continue
        journal.cells_stored[one.entry] = [one.entries, one.sum_ns]
        rows.append(
            {
                "rank": meta.rank,
                "restart": meta.restart,
                "phase": one.phase,
                "n": None,
                "number": None,
                "name": one.name,
                "category": one.category,
                "parent": one.enclosing,
                "path": "",
                "beside": False,
                "aggregate": True,
                "count": one.entries - count,
                "sum_ns": one.sum_ns - total,
                "self_ns": one.sum_ns - total,
                "min_ns": one.min_ns,
                "max_ns": one.max_ns,
                "start_ns": meta.unix_ns,
            }
        )
    return rows
