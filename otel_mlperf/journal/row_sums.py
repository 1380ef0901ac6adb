"""Sums of the sections in many rows, grouped by the number of their name.

They are computed by column, for the agent and for a process that queries its section statistics.
The recorder loads this module only where the program has loaded NumPy.
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
    """Calls sorted by name, and the sums of each name."""

    names: NDArray[np.uint32]
    durations: NDArray[np.int64]
    first: NDArray[np.intp]
    """Index of each name's first call; the following columns have one value for each name."""
    counts: NDArray[np.intp]
    totals: NDArray[np.int64]
    own: NDArray[np.int64]
    least: NDArray[np.int64]
    most: NDArray[np.int64]


def by_name(
    names: NDArray[np.uint32], durations: NDArray[np.int64], own: NDArray[np.int64]
) -> ByName:
    """Return the sums of at least one call."""
    order = np.argsort(names, kind="stable")
    names, durations, own = names[order], durations[order], own[order]
    first = np.flatnonzero(np.diff(names.astype(np.int64), prepend=-1))
    counts = np.diff(first, append=len(names))
    total, self_ns = np.add.reduceat(durations, first), np.add.reduceat(own, first)
    least, most = np.minimum.reduceat(durations, first), np.maximum.reduceat(durations, first)
    return ByName(names, durations, first, counts, total, self_ns, least, most)


def durations_of(sections: Rows) -> NDArray[np.int64]:
    """Return the duration of each section, in ns."""
    durations: NDArray[np.int64] = (sections["end"] - sections["start"]).astype(np.int64)
    return durations


def own_times(
    inside: Inside, sections: Rows, durations: NDArray[np.int64], begun: Rows, cancelled: Rows
) -> NDArray[np.int64]:
    """Return the duration of each section, without the sections directly inside on its track."""
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
    above, is_here = order[place], in_order[place] == parents
    is_own = is_here & (tracks[above] == tracks)
    np.subtract.at(own, above[is_own], durations[is_own])
    _keep(inside, parents[~is_here], tracks[~is_here], durations[~is_here])
    known = np.flatnonzero(np.isin(spans, np.fromiter(inside.by_section, np.uint64)))
    for i, span, track in zip(known, spans[known].tolist(), tracks[known].tolist(), strict=True):
        own[i] -= inside.take(span, track)
    _take_pauses(inside, sections, own)
    return own.clip(min=0)


def _take_pauses(inside: Inside, sections: Rows, own: NDArray[np.int64]) -> None:
    """Subtract each garbage collection from the innermost section of its track around it."""
    is_pause = sections["flags"] & Flag.PAUSE != 0
    waiting = inside.pauses
    columns = (sections[key][is_pause].tolist() for key in ("track", "start", "end"))
    for track, start, end in zip(*columns, strict=True):
        waiting.setdefault(track, []).append((start, end))
    for track, pauses in waiting.items():
        mine = np.flatnonzero(~is_pause & (sections["track"] == np.uint64(track)))
        starts, ends = sections["start"][mine], sections["end"][mine]
        left = []
        for start, end in pauses:
            holds = np.flatnonzero((starts <= np.uint64(start)) & (ends >= np.uint64(end)))
            if len(holds):
                own[mine[holds[(ends - starts)[holds].argmin()]]] -= end - start
            else:
                left.append((start, end))
        waiting[track] = left[-MOST_PAUSES:]


def _keep(
    inside: Inside,
    parents: NDArray[np.uint64],
    tracks: NDArray[np.uint64],
    durations: NDArray[np.int64],
) -> None:
    """Add the durations inside sections that end later."""
    if not len(parents):
        return
    # Consecutive rows are mostly in the same section: an open step, or the run.
    is_new = (parents[1:] != parents[:-1]) | (tracks[1:] != tracks[:-1])
    first = np.flatnonzero(np.concatenate(([True], is_new)))
    columns = parents[first], tracks[first], np.add.reduceat(durations, first)
    for parent, track, took_ns in zip(*(column.tolist() for column in columns), strict=True):
        inside.add(parent, track, took_ns)


def new_calls(text: bytes, inside: Inside, after: int) -> dict[int, NewCalls]:
    """Return the calls in the rows behind slot ``after``; earlier rows may be inside them."""
    rows = np.frombuffer(text, ROW_TYPE)
    is_section = rows["flags"] & 15 == Kind.SECTION
    sections, others = rows[is_section], rows[~is_section]
    durations = durations_of(sections)
    begun, cancelled = (rows_of_kind(others, kind) for kind in (Kind.BEGIN, Kind.CANCEL))
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
