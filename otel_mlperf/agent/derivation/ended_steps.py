"""Section rows of ended steps, with self times.

The time between the request for a batch and its arrival is a wait for data. Sections of the data
loader in that time are parts of the wait. These sections are reported, but do not reduce the wait's
self time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_mlperf.intervals import inner_ns, latest_ns, sums
from otel_mlperf.journal.layout import Flag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.journal.ring_scan import Rows


class EndedStepRows(NamedTuple):
    """Section rows of ended steps, sorted by step, with derived columns."""

    rows: Rows
    step: NDArray[np.int64]
    """Index of the step to which each row belongs."""
    self_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    concurrent: NDArray[np.bool_]
    """Whether the row's time is not the step's: it ran on another track, outlasted the step, or is
    part of a wait."""
    wait: NDArray[np.int64]
    """Entry number of the name of the wait for data that contains the row; -1 if none does."""

    def only(self, chosen: NDArray[np.bool_]) -> EndedStepRows:
        """Return the rows that the mask ``chosen`` selects."""
        return EndedStepRows(*(column[chosen] for column in self))  # type: ignore[arg-type]  # in order


def gather(
    rows: Rows,
    roots: NDArray[np.uint64],
    tracks: NDArray[np.uint64],
    ends: NDArray[np.int64],
    loading: NDArray[np.uint64],
) -> EndedStepRows:
    """Return ``rows`` sorted by step, with self times and other derived columns.

    Args:
        rows: section rows of all the steps.
        roots: span ids of the steps, ascending.
        tracks: track of each step.
        ends: end of each step, monotonic ns.
        loading: entry numbers of the section names that are waits for data.
    """
    step = np.searchsorted(roots, rows["root"]).astype(np.int64)
    order = np.argsort(step, kind="stable")
    # Stable sort: rows of one step stay in the order in which they ended.
    rows, step = rows[order], step[order]
    start = rows["start"].astype(np.int64)
    end = np.maximum(rows["end"].astype(np.int64), start)
    # A section that outlasts its step (e.g. a generator that feeds the loop) is concurrent with it.
    outlasts = end > ends[step]
    concurrent = outlasts | (rows["track"] != tracks[step])
    own = self_times(rows, outlasts)
    _settle_overlaps(rows, step, concurrent, own, len(roots))
    around = _waits_around(rows, concurrent, loading)
    part = np.flatnonzero(around >= 0)
    np.add.at(own, around[part], own[part])
    concurrent[part] = True
    wait = np.full(len(rows), -1, np.int64)
    wait[part] = rows["name"][around[part]]
    return EndedStepRows(rows, step, own, end - start, concurrent, wait)


def _waits_around(
    rows: Rows, concurrent: NDArray[np.bool_], loading: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the index of the outermost wait for data around each row; -1 if there is none.

    A garbage collection is never part of a wait, because its time is always reported separately.
    """
    around = np.full(len(rows), -1, np.int64)
    is_wait = np.isin(rows["name"], loading) & ~concurrent
    if not np.isin(rows["parent"], rows["span"][is_wait]).any():
        return around
    order = np.argsort(rows["span"])
    at = np.minimum(np.searchsorted(rows["span"], rows["parent"], sorter=order), len(rows) - 1)
    above = order[at]
    has_parent = (rows["span"][above] == rows["parent"]) & (rows["parent"] != rows["span"])
    above = np.where(has_parent & ~concurrent, above, -1)
    ancestor = above
    # One iteration for each level of nesting, bounded because damaged ids may form a cycle.
    for _ in range(len(rows)):
        if not (ancestor >= 0).any():
            break
        found = (ancestor >= 0) & is_wait[ancestor]
        around[found] = ancestor[found]
        ancestor = np.where(ancestor >= 0, above[ancestor], -1)
    around[rows["flags"] & Flag.PAUSE != 0] = -1
    return around


def _settle_overlaps(
    rows: Rows,
    step: NDArray[np.int64],
    concurrent: NDArray[np.bool_],
    own: NDArray[np.int64],
    n: int,
) -> None:
    """Recompute self times of steps with overlapping sections on one track (e.g. generators).

    In such a step, each moment counts for the section that started last. Steps without overlaps are
    skipped. A cheap check recognizes them: their self times sum to the step's duration.
    """
    inside = ~concurrent
    is_root = rows["span"] == rows["root"]
    length = sums(rows["end"][is_root] - rows["start"][is_root], step[is_root], n)
    inconsistent = np.flatnonzero(length != sums(own[inside], step[inside], n))
    for i in np.intersect1d(inconsistent, step[is_root & inside]).tolist():
        mine = np.flatnonzero(inside & (step == i))
        root = mine[is_root[mine]]
        start = np.maximum(rows["start"][mine].astype(np.int64), int(rows["start"][root[0]]))
        end = np.minimum(rows["end"][mine].astype(np.int64), int(rows["end"][root[0]]))
        own[mine] = latest_ns(start.tolist(), end.tolist())


def self_times(rows: Rows, elsewhere: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Return the self time of each row in ns. ``rows`` must contain complete trees.

    Self time is a section's duration minus the union of its children on the same track, each
    clipped to the section. Children on other tracks, and rows selected by the mask ``elsewhere``,
    do not reduce the self time.
    """
    start = rows["start"].astype(np.int64)
    end = np.maximum(rows["end"].astype(np.int64), start)
    order = np.argsort(rows["span"])
    spans = rows["span"][order]
    at = np.minimum(np.searchsorted(spans, rows["parent"]), len(spans) - 1)
    parent = order[at]
    # If the parent is not among the rows, the search finds another row: compare the ids.
    inside = (
        (rows["span"][parent] == rows["parent"])
        & (rows["track"][parent] == rows["track"])
        & (rows["parent"] != rows["span"])
    )
    if elsewhere is not None:
        inside &= ~elsewhere
    return end - start - inner_ns(start, end, np.where(inside, parent, -1))
