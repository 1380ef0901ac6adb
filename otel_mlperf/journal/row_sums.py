"""Sums of section rows by name, computed on columns with NumPy.

The agent uses these sums, and so do processes that query section statistics. The recorder imports
this module only if the user's program has already imported NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_mlperf.journal.layout import Flag, Kind
from otel_mlperf.journal.ring_scan import ROW_TYPE, rows_of_kind
from otel_mlperf.journal.section_sums import MOST_PAUSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.journal.ring_scan import Rows
    from otel_mlperf.journal.section_sums import Inside, NewCalls


class ByName(NamedTuple):
    """Durations of calls in ns, sorted by the entry number of the name, and sums of each name."""

    names: NDArray[np.uint32]
    durations: NDArray[np.int64]
    first: NDArray[np.intp]
    """Index of the first call of each name. The following columns have one value for each name."""
    counts: NDArray[np.intp]
    totals: NDArray[np.int64]
    own: NDArray[np.int64]
    least: NDArray[np.int64]
    most: NDArray[np.int64]


def by_name(
    names: NDArray[np.uint32], durations: NDArray[np.int64], own: NDArray[np.int64]
) -> ByName:
    """Return the sums by name; arguments: entry number, duration and self time of each call."""
    order = np.argsort(names, kind="stable")
    names, durations, own = names[order], durations[order], own[order]
    first = np.flatnonzero(np.diff(names.astype(np.int64), prepend=-1))
    counts = np.diff(first, append=len(names))
    total, self_ns = np.add.reduceat(durations, first), np.add.reduceat(own, first)
    least, most = np.minimum.reduceat(durations, first), np.maximum.reduceat(durations, first)
    return ByName(names, durations, first, counts, total, self_ns, least, most)


def durations_of(sections: Rows) -> NDArray[np.int64]:
    """Return the duration of each section row, in ns."""
    durations: NDArray[np.int64] = (sections["end"] - sections["start"]).astype(np.int64)
    return durations


def own_times(
    inside: Inside, sections: Rows, durations: NDArray[np.int64], begun: Rows, cancelled: Rows
) -> NDArray[np.int64]:
    """Return each section's self time in ns: without direct children on the same track.

    ``inside`` is updated with the time in sections whose parent is still open. ``begun`` and
    ``cancelled`` are the BEGIN and CANCEL rows of the same poll.
    """
    for root, around in zip(begun["span"].tolist(), begun["parent"].tolist(), strict=True):
        inside.begin(root, around)
    spans, parents, tracks = (sections[key].copy() for key in ("span", "parent", "track"))
    own, is_root = durations.copy(), parents == 0
    parents[is_root] = [inside.around(span, 0) for span in spans[is_root].tolist()]
    for span, parent in zip(cancelled["span"].tolist(), cancelled["parent"].tolist(), strict=True):
        around = inside.around(span, parent)
        parents[parents == np.uint64(span)] = around
        inside.move(span, around)
    if not len(sections):
        return own
    order = np.argsort(spans, kind="stable")
    in_order = spans[order]
    place = np.minimum(np.searchsorted(in_order, parents), len(spans) - 1)
    above, is_found = order[place], in_order[place] == parents
    is_same_track = is_found & (tracks[above] == tracks)
    np.subtract.at(own, above[is_same_track], durations[is_same_track])
    _add_to_parents(inside, parents[~is_found], tracks[~is_found], durations[~is_found])
    known = np.flatnonzero(np.isin(spans, np.fromiter(inside.by_section, np.uint64)))
    for i, span, track in zip(known, spans[known].tolist(), tracks[known].tolist(), strict=True):
        own[i] -= inside.take(span, track)
    _subtract_pauses(inside, sections, own)
    return own.clip(min=0)


def _subtract_pauses(inside: Inside, sections: Rows, own: NDArray[np.int64]) -> None:
    """Subtract each garbage collection from ``own`` of the innermost section on its track."""
    is_pause = sections["flags"] & Flag.PAUSE != 0
    waiting = inside.pauses
    columns = (sections[key][is_pause].tolist() for key in ("track", "start", "end"))
    for track, start, end in zip(*columns, strict=True):
        waiting.setdefault(track, []).append((start, end))
    for track, pauses in waiting.items():
        mine = np.flatnonzero(~is_pause & (sections["track"] == np.uint64(track)))
        starts, ends = sections["start"][mine], sections["end"][mine]
        unassigned = []
        for start, end in pauses:
            enclosing = np.flatnonzero((starts <= np.uint64(start)) & (ends >= np.uint64(end)))
            if len(enclosing):
                own[mine[enclosing[(ends - starts)[enclosing].argmin()]]] -= end - start
            else:
                unassigned.append((start, end))
        waiting[track] = unassigned[-MOST_PAUSES:]


def _add_to_parents(
    inside: Inside,
    parents: NDArray[np.uint64],
    tracks: NDArray[np.uint64],
    durations: NDArray[np.int64],
) -> None:
    if not len(parents):
        return
    # Sum consecutive rows first, because most of them have the same parent (an open step or the
    # run).
    is_new = (parents[1:] != parents[:-1]) | (tracks[1:] != tracks[:-1])
    first = np.flatnonzero(np.concatenate(([True], is_new)))
    columns = parents[first], tracks[first], np.add.reduceat(durations, first)
    for parent, track, took_ns in zip(*(column.tolist() for column in columns), strict=True):
        inside.add(parent, track, took_ns)


def new_calls(text: bytes, inside: Inside, after: int) -> dict[int, NewCalls]:
    """Return the calls after slot ``after``, by entry number of the name.

    ``text`` also contains earlier rows, because earlier sections might be inside these calls.
    """
    rows = np.frombuffer(text, ROW_TYPE)
    is_section = rows["flags"] & 15 == Kind.SECTION
    sections, other_rows = rows[is_section], rows[~is_section]
    durations = durations_of(sections)
    begun, cancelled = (rows_of_kind(other_rows, kind) for kind in (Kind.BEGIN, Kind.CANCEL))
    own = own_times(inside, sections, durations, begun, cancelled)
    later = sections["seq"] > np.uint64(after)
    if not later.any():
        return {}
    of = by_name(sections["name"][later], durations[later], own[later])
    each, first = of.durations.tolist(), of.first.tolist()
    durations_ns = [each[begin:end] for begin, end in zip(first, [*first[1:], None], strict=True)]
    columns = (column.tolist() for column in (of.totals, of.own, of.least, of.most))
    sums = zip(*columns, durations_ns, strict=True)
    return dict(zip(of.names[of.first].tolist(), sums, strict=True))
