"""What do the calls of each name come to, since the begin and since each mark?

Of every row that comes, whatever else becomes of it, so that the process itself can be told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.journal.layout import FIRST_OWN, HISTOGRAM_SCALE, MAX_ENTRIES, MOST_OWN, Kind
from otel_mlperf.journal.ring_scan import rows_of_kind
from otel_mlperf.journal.section_sums import Inside, MarkSums, RunningSums, Sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.journal.ring_scan import Rows

_BUCKET_BITS = 16


def add_rows(sums: RunningSums, rows: Rows, latest_ns: int) -> None:
    """Adds rows as they were read; none can be later than ``latest_ns``."""
    for row in rows_of_kind(rows, Kind.MARK):
        _begin_mark(sums, int(row["span"]), int(row["seq"]))
    sections = rows_of_kind(rows, Kind.SECTION)
    can_be = (sections["end"] >= sections["start"]) & (sections["end"] < np.uint64(latest_ns))
    can_be &= (sections["span"] != 0) & (sections["name"] <= MAX_ENTRIES)
    sections = sections[can_be]
    durations = (sections["end"] - sections["start"]).astype(np.int64)
    for row in rows_of_kind(rows, Kind.BEGIN):
        sums.inside.begin(int(row["span"]), int(row["parent"]))
    own = _own_times(sums.inside, sections, durations, rows_of_kind(rows, Kind.CANCEL))
    if not len(sections):
        return
    all_of_them = _added_up(sections["name"], durations, own)
    for mark in sums.marks.values():
        later = sections["seq"] > np.uint64(mark.slot)
        if later.all():
            found = all_of_them
        elif later.any():
            found = _added_up(sections["name"][later], durations[later], own[later])
        else:
            continue
        for name, of in found.items():
            mark.sections.setdefault(name, Sums()).add(of)


def _begin_mark(sums: RunningSums, number: int, slot: int) -> None:
    known = sums.marks.get(number)
    if number == 0 or (known is not None and known.slot >= slot):
        return  # a row that was late, or written over
    sums.marks[number] = MarkSums(slot)
    own = [known for known in sums.marks if known >= FIRST_OWN]
    for outdated in sorted(own)[:-MOST_OWN]:
        del sums.marks[outdated]


def _own_times(
    inside: Inside, rows: Rows, durations: NDArray[np.int64], cancelled: Rows
) -> NDArray[np.int64]:
    """The duration of each, without those directly inside it on its track."""
    parents, own = rows["parent"].copy(), durations.copy()
    for at in np.flatnonzero(parents == 0).tolist():
        parents[at] = inside.around(int(rows["span"][at]), 0)
    for row in cancelled:
        around = inside.around(int(row["span"]), int(row["parent"]))
        parents[parents == row["span"]] = around
        inside.move(int(row["span"]), around)
    if not len(rows):
        return own
    order = np.argsort(rows["span"], kind="stable")
    spans = rows["span"][order]
    place = np.minimum(np.searchsorted(spans, parents), len(spans) - 1)
    above, is_here = order[place], spans[place] == parents
    is_own = is_here & (rows["track"][above] == rows["track"])
    np.subtract.at(own, above[is_own], durations[is_own])
    later = zip(parents[~is_here], rows["track"][~is_here], durations[~is_here], strict=True)
    for parent, track, took_ns in later:
        inside.add(int(parent), int(track), int(took_ns))
    known = np.isin(rows["span"], np.fromiter(inside.by_section, np.uint64))
    for i in np.flatnonzero(known):
        own[i] -= inside.take(int(rows["span"][i]), int(rows["track"][i]))
    return np.maximum(own, 0)


def _added_up(
    names: NDArray[np.uint32], durations: NDArray[np.int64], own: NDArray[np.int64]
) -> dict[int, Sums]:
    """By name; at least one row."""
    order = np.argsort(names, kind="stable")
    names, durations, own = names[order], durations[order], own[order]
    first = np.flatnonzero(np.diff(names.astype(np.int64), prepend=-1))
    counts = np.diff(first, append=len(names))
    totals = np.add.reduceat(durations, first)
    away = durations - np.repeat(totals / counts, counts)
    columns = (
        names[first],
        counts,
        totals,
        np.add.reduceat(own, first),
        np.minimum.reduceat(durations, first),
        np.maximum.reduceat(durations, first),
        np.add.reduceat(away * away, first),
    )
    found = {
        name: Sums(*numbers)
        for name, *numbers in zip(*(column.tolist() for column in columns), strict=True)
    }
    buckets = np.ceil(np.log2(np.maximum(durations, 1)) * (1 << HISTOGRAM_SCALE)).astype(np.int64)
    both, calls = np.unique(names.astype(np.int64) << _BUCKET_BITS | buckets, return_counts=True)
    for key, count in zip(both.tolist(), calls.tolist(), strict=True):
        found[key >> _BUCKET_BITS].counts[(key & (1 << _BUCKET_BITS) - 1) - 1] = count
    return found
