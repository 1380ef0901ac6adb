"""Totals of event durations by group: count, sum, minimum, maximum and quantiles.

Quantiles are by nearest rank: the p-th percentile is the smallest duration in the group that at
least p % of the group's events do not exceed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from otel_mlperf.intervals import inner_ns, nearest_rank
from otel_mlperf.kineto.linking.forest import Forest, looked_up
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace

    Integers = NDArray[np.integer[Any]]


def totals(
    group: Integers, duration_ns: Integers, self_ns: Integers
) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the number of each group, ascending, with the group's columns of table ``totals``.

    Every argument has one item for each event; ``group`` is the number of the event's group.
    """
    # Sorted by duration in each group, so that minimum, maximum and quantiles are single positions.
    order = np.lexsort((duration_ns, group))
    inside, duration = group[order], duration_ns[order].astype(np.int64, copy=False)
    begins = np.ones(len(order), np.bool_)
    begins[1:] = inside[1:] != inside[:-1]
    first = np.flatnonzero(begins)
    count = np.diff(first, append=len(order)).astype(np.int64)
    own = self_ns[order].astype(np.int64, copy=False)
    columns = {
        "count": count,
        "total_ns": np.add.reduceat(duration, first) if len(first) else duration,
        "self_ns": np.add.reduceat(own, first) if len(first) else own,
        "min_ns": duration[first],
        "max_ns": duration[first + count - 1],
        "p50_ns": duration[first + nearest_rank(count, 50)],
        "p95_ns": duration[first + nearest_rank(count, 95)],
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    for number, row in zip(inside[first].tolist(), rows, strict=True):
        yield number, dict(zip(columns, row, strict=True))


def self_times(trace: Trace, around: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return each event's duration without the time of the events inside it on the same track.

    ``self = duration - |union of the children's intervals, cut to the parent's|``, where ``around``
    contains the row of the event around each event. Device work is not subtracted, because it does
    not run on the thread of the operator that launched it. Python frames are not subtracted either:
    an event directly inside a frame counts as directly inside the operator around the frame, so
    that an operator has the same self time with and without recorded stacks. The self time of a
    frame excludes everything inside the frame.
    """
    is_frame = find_roles(trace) == Role.PYTHON
    if not is_frame.any():
        return trace.events.duration_ns - _inside_ns(trace, around)
    above = np.where(is_frame, NONE, Forest(around).nearest(~is_frame))
    inside_ns = np.where(is_frame, _inside_ns(trace, around), _inside_ns(trace, above))
    return trace.events.duration_ns - inside_ns


def _inside_ns(trace: Trace, around: NDArray[np.int32]) -> NDArray[np.int64]:
    events = trace.events
    is_inside = (around != NONE) & (events.track == looked_up(events.track, around))
    above = np.where(is_inside, around, np.int32(NONE))
    return inner_ns(events.start_ns, events.start_ns + np.maximum(events.duration_ns, 0), above)
