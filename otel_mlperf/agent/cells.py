"""What do the cells of a journal hold: user counters, gauges, aggregated sections?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.names import Instrument, Metric

if TYPE_CHECKING:
    from otel_mlperf.agent.state import JournalState


_OWN = {metric.name: metric for metric in names.METRICS}


class UserValue(NamedTuple):
    """A counter's sum or a gauge's last value in one journal."""

    metric: Metric
    value: float


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
    """The description of a counter or gauge that the program made."""
    instrument: Instrument = "counter" if kind == "counter" else "gauge"
    return Metric(name, unit, instrument, "Recorded by the program.")


def _cells(journal: JournalState) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.frombuffer(journal.cells, np.uint64).reshape(-1, 8)


def user_values(journal: JournalState) -> list[UserValue]:
    """Counters summed over their cells; gauges that were set."""
    found: dict[int, tuple[Metric, list[float]]] = {}
    for cell in _cells(journal):
        entry = journal.entries.get(int(cell[0])) or [None]
        if entry[0] != "cell" or entry[1] == "aggregate" or not cell[2]:
            continue
        _, kind, name, unit = entry
        metric = _OWN.get(name) or user_metric(names.user_metric(name), unit, kind)
        value = float(cell[1:2].view(np.float64)[0])
        found.setdefault(int(cell[0]), (metric, []))[1].append(value)
    return [
        UserValue(metric, sum(values) if metric.instrument == "counter" else values[-1])
        for metric, values in found.values()
    ]


def aggregates(journal: JournalState) -> list[Aggregate]:
    """Aggregated sections that were entered, summed over threads."""
    found: dict[int, Aggregate] = {}
    for cell in _cells(journal):
        number = int(cell[0])
        entry = journal.entries.get(number) or [None]
        if entry[0] != "cell" or entry[1] != "aggregate" or not cell[1]:
            continue
        _, _, name, category, enclosing, phase = entry
        count, total, least, most = (int(word) for word in cell[1:5])
        before = found.get(number)
        if before:
            count, total = count + before.entries, total + before.sum_ns
            least, most = min(least, before.min_ns), max(most, before.max_ns)
        found[number] = Aggregate(
            number, name, category, enclosing, phase, count, total, least, most
        )
    return list(found.values())


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
