"""Running sums of the calls of each section name, since the start of the run and since each mark.

Every row is added as soon as it is read, whether sampled or not. The agent publishes the sums to
the training process, which uses them to answer queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.journal.layout import (
    FIRST_PROGRAM_MARK,
    HISTOGRAM_SCALE,
    MAX_ENTRIES,
    MAX_PROGRAM_MARKS,
    Kind,
)
from otel_mlperf.journal.ring_scan import rows_of_kind
from otel_mlperf.journal.row_sums import by_name, durations_of, own_times
from otel_mlperf.journal.section_sums import MarkSums, RunningSums, Sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.journal.ring_scan import Rows

_BUCKET_BITS = 16


def add_rows(sums: RunningSums, rows: Rows, latest_ns: int) -> None:
    """Add read rows to ``sums``.

    Rows that end at or after ``latest_ns`` are damaged and ignored.
    """
    for row in rows_of_kind(rows, Kind.MARK):
        _begin_mark(sums, int(row["span"]), int(row["seq"]))
    sections = rows_of_kind(rows, Kind.SECTION)
    can_be = (sections["end"] >= sections["start"]) & (sections["end"] < np.uint64(latest_ns))
    can_be &= (sections["span"] != 0) & (sections["name"] <= MAX_ENTRIES)
    sections = sections[can_be]
    durations = durations_of(sections)
    started, cancelled = (rows_of_kind(rows, kind) for kind in (Kind.BEGIN, Kind.CANCEL))
    own = own_times(sums.inside, sections, durations, started, cancelled)
    if not len(sections):
        return
    all_sums = _added_up(sections["name"], durations, own)
    for mark in sums.marks.values():
        later = sections["seq"] > np.uint64(mark.slot)
        if later.all():
            found = all_sums
        elif later.any():
            found = _added_up(sections["name"][later], durations[later], own[later])
        else:
            continue
        for name, of in found.items():
            mark.sections.setdefault(name, Sums()).add(of)


def _begin_mark(sums: RunningSums, number: int, slot: int) -> None:
    previous = sums.marks.get(number)
    if number == 0 or (previous is not None and previous.slot >= slot):
        return  # a row that arrived late or was overwritten
    sums.marks[number] = MarkSums(slot)
    own = [previous for previous in sums.marks if previous >= FIRST_PROGRAM_MARK]
    for outdated in sorted(own)[:-MAX_PROGRAM_MARKS]:
        del sums.marks[outdated]


def _added_up(
    names: NDArray[np.uint32], durations: NDArray[np.int64], own: NDArray[np.int64]
) -> dict[int, Sums]:
    of = by_name(names, durations, own)
    deviations = of.durations - np.repeat(of.totals / of.counts, of.counts)
    spread = np.add.reduceat(deviations * deviations, of.first)
    columns = of.names[of.first], of.counts, of.totals, of.own, of.least, of.most, spread
    found = {
        name: Sums(*numbers)
        for name, *numbers in zip(*(column.tolist() for column in columns), strict=True)
    }
    logarithms = np.log2(np.maximum(of.durations, 1))
    buckets = np.ceil(logarithms * (1 << HISTOGRAM_SCALE)).astype(np.int64)
    name_buckets = of.names.astype(np.int64) << _BUCKET_BITS | buckets
    name_buckets, calls = np.unique(name_buckets, return_counts=True)
    for key, count in zip(name_buckets.tolist(), calls.tolist(), strict=True):
        found[key >> _BUCKET_BITS].counts[(key & (1 << _BUCKET_BITS) - 1) - 1] = count
    return found
