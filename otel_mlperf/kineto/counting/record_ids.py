"""Doubtful record ids: wrong correlations, duplicate records and lost arrows.

- Device work has its launch, unless it was launched before the window. In that case its
  correlation is lower than that of any call in the window, and no operator in the window requested
  it.
- A launch of CUDA is answered by exactly one record of its own kind, unless it launches a graph. A
  second record, while other launches have none, has a wrong correlation. So does work at which the
  arrow of another call ends, and work without a launch while a launch has no work.
- Kineto draws an arrow from each launch to each of its records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.counting.device_work import is_of
from otel_mlperf.kineto.counting.unanswered_launches import KINDS
from otel_mlperf.kineto.counting.window_losses import (
    ARROW,
    COPY,
    CORRELATION,
    DUPLICATE,
    GRAPH,
    KERNEL,
    LAUNCH,
    LEAST_SHARE,
    MEMSET,
    device_loss,
)
from otel_mlperf.kineto.linking.linked_events import Place, Role, find_roles
from otel_mlperf.kineto.trace_events import FIRST_TEXT_ID, NONE
from otel_mlperf.store.window_facts import Loss

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.counting.unanswered_launches import Launches
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace

_CATEGORIES: Final = {
    COPY: frozenset({"gpu_memcpy", "memcpy"}),
    MEMSET: frozenset({"gpu_memset", "memset"}),
    KERNEL: frozenset({"kernel", "concurrent_kernel"}),
}
"""Newer and older categories of the records that answer each kind of launch."""
_CORRELATED: Final = frozenset().union(*_CATEGORIES.values())
"""Categories with the correlation of their call; other vendors' records use other numbers."""
_LAUNCHES, _BACKWARD = "ac2g", "fwdbwd"
_ODD: Final = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)


class Doubtful(NamedTuple):
    """Device work with doubtful ids; one item for each record of the work."""

    foreign: NDArray[np.bool_]
    """Whether the record has the correlation of something else."""
    strays: NDArray[np.bool_]
    """Whether the record has no launch, though it was launched in the window."""

    def losses(self, work: Work) -> list[Loss]:
        """Return the losses to report for these records."""
        return device_loss(CORRELATION, work, self.foreign) + device_loss(LAUNCH, work, self.strays)


def find_doubtful(trace: Trace, links: Links, work: Work, launches: Launches) -> Doubtful:
    """Return the records that have a wrong correlation, or no launch."""
    call = links.launch[work.rows]
    kind = launches.kind_of_calls(call)
    foreign = _ends_of_others(trace, work) | _of_another_kind(trace, work, call, kind)
    strays = _strays(trace, links, work, call)
    if launches.is_missing.any():
        is_numberless = (call == NONE) & (trace.events.correlation[work.rows] <= 0)
        foreign |= strays | is_numberless | _is_second(work, call)
        strays = np.zeros_like(strays)
    correlated = is_of(trace, _CORRELATED)[work.rows]
    return Doubtful(foreign & correlated & (kind != KINDS.index(GRAPH)), strays & correlated)


def _strays(trace: Trace, links: Links, work: Work, call: NDArray[np.int32]) -> NDArray[np.bool_]:
    events, is_asked = trace.events, links.place[work.rows] == Place.ASKED
    numbers = events.correlation[find_roles(trace) == Role.CALL]
    numbers = numbers[numbers > 0]
    own = events.correlation[work.rows]
    # Correlations only increase: a lower one was launched before the window started.
    is_inside = own > numbers.min() if len(numbers) else np.zeros_like(is_asked)
    strays: NDArray[np.bool_] = (call == NONE) & (is_inside | is_asked)
    return strays


def _of_another_kind(
    trace: Trace, work: Work, call: NDArray[np.int32], kind: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    # Applies to CUDA only: ROCm copies with kernels.
    is_cuda = np.array([name.startswith("cu") for name in trace.names] or [False])
    known = (call != NONE) & is_cuda[np.append(trace.events.name, 0)[call]]
    other = np.zeros(len(call), np.bool_)
    for wanted, categories in _CATEGORIES.items():
        is_its = is_of(trace, categories)[work.rows]
        other |= known & (kind == KINDS.index(wanted)) & ~is_its
    return other


def _is_second(work: Work, call: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return whether another record of the same launch started earlier."""
    order = np.lexsort((work.start_ns, call))
    second = np.zeros(len(order), np.bool_)
    second[order[1:]] = (np.diff(call[order]) == 0) & (call[order[1:]] != NONE)
    return second


def _ends_of_others(trace: Trace, work: Work) -> NDArray[np.bool_]:
    """Return whether arrows end where a record starts, and none of them has its number."""
    events, flows, ends = trace.events, trace.flows, _ends_at_work(trace, work)
    ends = ends[flows.id[ends] >= 0]  # Text ids are not correlations.
    places = events.track[work.rows], events.start_ns[work.rows]
    there = flows.track[ends], flows.time_ns[ends]
    has_any = np.isin(marks(*places), marks(*there))
    has_own = np.isin(marks(*places, events.correlation[work.rows]), marks(*there, flows.id[ends]))
    others: NDArray[np.bool_] = has_any & ~has_own
    return others


def _arrows(trace: Trace, kind: str, *, starts: bool) -> NDArray[np.intp]:
    number = trace.flow_kinds.index(kind) if kind in trace.flow_kinds else NONE
    return np.flatnonzero((trace.flows.kind == number) & (trace.flows.starts == starts))


def _ends_at_work(trace: Trace, work: Work) -> NDArray[np.intp]:
    """Return the ends of launches' arrows on tracks of devices: as many again end at calls."""
    has_work = np.zeros(max(len(trace.tracks), 1), np.bool_)
    has_work[trace.events.track[work.rows]] = True
    ends = _arrows(trace, _LAUNCHES, starts=False)
    at_work: NDArray[np.intp] = ends[has_work[trace.flows.track[ends]]]
    return at_work


def find_lost_arrows(
    trace: Trace, links: Links, work: Work, launches: Launches, foreign: NDArray[np.bool_]
) -> list[Loss]:
    """Return records without an arrow from their launch, and arrows of autograd without an end.

    Nothing is reported for a trace that the profiler did not write itself: other tools draw no
    arrows. ``foreign`` records are skipped too: their numbers match no arrow.
    """
    roles, events, flows = find_roles(trace), trace.events, trace.flows
    if not (len(flows) or (roles == Role.WINDOW).any()):
        return []
    call = links.launch[work.rows]
    kind = launches.kind_of_calls(call)
    is_due = (call != NONE) & (events.correlation[work.rows] > 0) & ~foreign
    is_due &= kind != KINDS.index(GRAPH)
    due = np.flatnonzero(is_due)
    own = events.correlation[work.rows[due]]
    ends, tails = _ends_at_work(trace, work), _arrows(trace, _LAUNCHES, starts=True)
    there = marks(flows.track[ends], flows.time_ns[ends])
    at = marks(events.track[work.rows[due]], events.start_ns[work.rows[due]])
    # Kineto for ROCm also lets the arrow of a memset end at its call, and start nowhere.
    begins = np.isin(own, flows.id[tails]) | (kind[due] != KINDS.index(KERNEL))
    begins |= bool((flows.id[tails] <= FIRST_TEXT_ID).any())
    has_arrow = np.isin(at, there) & begins
    lost = np.zeros(len(work.rows), np.bool_)
    lost[due] = ~has_arrow
    return device_loss(ARROW, work, lost) + _halves(trace)


def _halves(trace: Trace) -> list[Loss]:
    tails, heads = (_arrows(trace, _BACKWARD, starts=starts) for starts in (True, False))
    ids = trace.flows.id
    alone = np.concatenate(
        (tails[~np.isin(ids[tails], ids[heads])], heads[~np.isin(ids[heads], ids[tails])])
    )
    many = len(np.union1d(ids[tails], ids[heads]))
    if len(alone) <= LEAST_SHARE * many:
        return []
    time = trace.flows.time_ns[alone]
    what = "of autograd, one end each"
    return [Loss(ARROW, len(alone), many, int(time.min()), int(time.max()), what=what)]


def find_duplicates(trace: Trace) -> list[Loss]:
    """Return records of devices, calls and operators that occur more than once in the file."""
    events, roles = trace.events, find_roles(trace)
    number = np.where(roles == Role.OPERATOR, events.external, events.correlation)
    rows = np.flatnonzero((number > 0) & np.isin(roles, (Role.DEVICE, Role.CALL, Role.OPERATOR)))
    mark = marks(events.track, events.start_ns, events.duration_ns, events.name, number)[rows]
    # Sorting the values alone is faster, and needs less memory, than sorting their places;
    # duplicates are few.
    ordered = np.sort(mark)
    is_alike = np.isin(mark, ordered[1:][ordered[1:] == ordered[:-1]])
    _, first = np.unique(mark[is_alike], return_index=True)
    twice = np.delete(rows[is_alike], first)
    if len(twice) <= LEAST_SHARE * len(rows):
        return []
    start = events.start_ns[twice]
    return [Loss(DUPLICATE, len(twice), len(rows), int(start.min()), int(start.max()))]


def marks(*columns: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a hash of the values of each row; rows with different values have different hashes."""
    mark = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mark ^= column.astype(np.uint64)
        mark *= np.uint64(_ODD[0])
        mark ^= mark >> np.uint64(32)
        mark *= np.uint64(_ODD[1])
    return mark
