"""Doubtful records: wrong correlations, duplicates, lost arrows and impossible times.

A record is doubtful if it breaks one of these rules:

- Device work has a launch in the trace, unless it was launched before the window: then its
  correlation is lower than that of any call in the window, and no operator in the window requested
  it.
- A CUDA launch is answered by exactly one record of its own kind, unless it launches a graph. A
  correlation is wrong if a second record has it while other launches have no record, if the arrow
  of another call ends at its record, or if its record has no launch while a launch has no record.
- Kineto draws an arrow from each launch to each of its records.
- Work starts after its launch, and ends before a call that waits for it returns. Otherwise the
  device's clock is wrong, and so are gaps, delays and the window itself. However, if the work of a
  stream runs in another order than it was launched, the ids are wrong and not the clock.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.counting.device_work import WorkKind, direction, is_of
from otel_mlperf.kineto.counting.unanswered_launches import KINDS
from otel_mlperf.kineto.counting.window_losses import (
    ARROW,
    COPY,
    CORRELATION,
    DEVICE_DURATION,
    DUPLICATE,
    EARLY,
    GRAPH,
    HOST_DURATION,
    KERNEL,
    LATE,
    LAUNCH,
    MEMSET,
    TOLERATED_SHARE,
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
"""Categories that records of each kind of launch have, in newer and older files."""
_CORRELATED: Final = frozenset().union(*_CATEGORIES.values())
"""Categories whose records have the correlation of their call; records of other vendors do not."""
_LAUNCHES, _BACKWARD = "ac2g", "fwdbwd"
_ODD: Final = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)


class Doubtful(NamedTuple):
    """Device records with doubtful ids; both arrays have one item for each device record."""

    foreign: NDArray[np.bool_]
    """Whether the record carries the correlation of a call that is not its own."""
    strays: NDArray[np.bool_]
    """Whether the record has no launch although it was launched in the window."""

    def losses(self, work: Work) -> list[Loss]:
        """Return the losses to report; ``work`` is the device work that the arrays describe."""
        return device_loss(CORRELATION, work, self.foreign) + device_loss(LAUNCH, work, self.strays)


def find_doubtful(trace: Trace, links: Links, work: Work, launches: Launches) -> Doubtful:
    """Return which records carry another call's correlation, and which lack a launch."""
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
    events, is_requested = trace.events, links.place[work.rows] == Place.ASKED
    numbers = events.correlation[find_roles(trace) == Role.CALL]
    numbers = numbers[numbers > 0]
    own = events.correlation[work.rows]
    # Correlations only increase: work with a lower one was launched before the window.
    is_inside = own > numbers.min() if len(numbers) else np.zeros_like(is_requested)
    strays: NDArray[np.bool_] = (call == NONE) & (is_inside | is_requested)
    return strays


def _of_another_kind(
    trace: Trace, work: Work, call: NDArray[np.int32], kind: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    # Checked for CUDA only, because ROCm copies memory with kernels.
    is_cuda = np.array([name.startswith("cu") for name in trace.names] or [False])
    known = (call != NONE) & is_cuda[np.append(trace.events.name, 0)[call]]
    other = np.zeros(len(call), np.bool_)
    for wanted, categories in _CATEGORIES.items():
        is_its = is_of(trace, categories)[work.rows]
        other |= known & (kind == KINDS.index(wanted)) & ~is_its
    return other


def _is_second(work: Work, call: NDArray[np.int32]) -> NDArray[np.bool_]:
    order = np.lexsort((work.start_ns, call))
    second = np.zeros(len(order), np.bool_)
    second[order[1:]] = (np.diff(call[order]) == 0) & (call[order[1:]] != NONE)
    return second


def _ends_of_others(trace: Trace, work: Work) -> NDArray[np.bool_]:
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
    has_work = np.zeros(max(len(trace.tracks), 1), np.bool_)
    has_work[trace.events.track[work.rows]] = True
    ends = _arrows(trace, _LAUNCHES, starts=False)
    at_work: NDArray[np.intp] = ends[has_work[trace.flows.track[ends]]]
    return at_work


def find_lost_arrows(
    trace: Trace, links: Links, work: Work, launches: Launches, foreign: NDArray[np.bool_]
) -> list[Loss]:
    """Return the losses of arrows: device records without arrow, autograd's arrows with one end.

    The list is empty for a trace with neither arrows nor the profiler's own span, because only
    Kineto writes arrows. ``foreign`` records are skipped: their correlations match no arrow.
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
    # Only arrows of kernels need a start, because Kineto for ROCm writes none for memsets.
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
    if len(alone) <= TOLERATED_SHARE * many:
        return []
    time = trace.flows.time_ns[alone]
    what = "autograd arrows with only one end"
    return [Loss(ARROW, len(alone), many, int(time.min()), int(time.max()), what=what)]


def find_duplicates(trace: Trace) -> list[Loss]:
    """Return the loss of duplicate records of device work, calls and operators; [] if few."""
    events, roles = trace.events, find_roles(trace)
    number = np.where(roles == Role.OPERATOR, events.external, events.correlation)
    rows = np.flatnonzero((number > 0) & np.isin(roles, (Role.DEVICE, Role.CALL, Role.OPERATOR)))
    mark = marks(events.track, events.start_ns, events.duration_ns, events.name, number)[rows]
    # Sorting the values is faster and needs less memory than sorting their indices, which are only
    # computed for the few duplicates.
    ordered = np.sort(mark)
    is_alike = np.isin(mark, ordered[1:][ordered[1:] == ordered[:-1]])
    _, first = np.unique(mark[is_alike], return_index=True)
    twice = np.delete(rows[is_alike], first)
    if len(twice) <= TOLERATED_SHARE * len(rows):
        return []
    start = events.start_ns[twice]
    return [Loss(DUPLICATE, len(twice), len(rows), int(start.min()), int(start.max()))]


def marks(*columns: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a 64-bit hash for each row, over the row's values in all ``columns``."""
    mark = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mark ^= column.astype(np.uint64)
        mark *= np.uint64(_ODD[0])
        mark ^= mark >> np.uint64(32)
        mark *= np.uint64(_ODD[1])
    return mark


_CLOCK_NS: Final = 10_000
"""Tolerated difference between the clocks of host and device, which Kineto aligns to about 1 µs."""
_CLOCK_SHARE: Final = 0.01
_ZERO_SHARE: Final = 0.05
_COARSE_NS: Final = 1_000
_COARSE_SHARES: Final = {DEVICE_DURATION: 0.5, HOST_DURATION: 0.99}
"""Tolerated share of records with duration 0 in a trace whose times are whole microseconds."""
_WAITS: Final = re.compile(r"DeviceSynchronize|CtxSynchronize")


def find_clock_losses(
    trace: Trace, links: Links, work: Work, foreign: NDArray[np.bool_]
) -> list[Loss]:
    """Return the losses of device work at impossible times.

    Impossible is a start before the launch, or an end after a call that waited for the work has
    returned. ``foreign`` work is skipped, because its correlation is that of another call.
    """
    known = np.flatnonzero((links.launch[work.rows] != NONE) & ~foreign)
    call, events = links.launch[work.rows[known]], trace.events
    ahead = np.zeros(len(work.rows), np.int64)
    ahead[known] = events.start_ns[call] - work.start_ns[known]
    over = np.zeros(len(work.rows), np.int64)
    over[known] = _overdue(trace, work, known, call)
    kind = CORRELATION if _is_disordered(trace, work, known, call) else EARLY
    early = device_loss(kind, work, ahead > _CLOCK_NS, _CLOCK_SHARE, _by_up_to(ahead))
    return early + device_loss(LATE, work, over > _CLOCK_NS, 0.0, _by_up_to(over))


def _by_up_to(ns: NDArray[np.int64]) -> str:
    return f"by up to {ns.max(initial=0) / 1e6:,.3f} ms"


def _is_disordered(
    trace: Trace, work: Work, known: NDArray[np.intp], call: NDArray[np.int32]
) -> bool:
    order = np.lexsort((work.start_ns[known], work.stream[known]))
    stream, launched = work.stream[known][order], trace.events.start_ns[call[order]]
    is_next = stream[1:] == stream[:-1]
    is_turned = is_next & (launched[1:] < launched[:-1] - _CLOCK_NS)
    return bool(is_turned.sum() > _CLOCK_SHARE * is_next.sum())


def _overdue(
    trace: Trace, work: Work, known: NDArray[np.intp], call: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return by how many ns each piece of work outlasted a call that waited for it; 0 if none did.

    ``known`` are indices into ``work``; ``call`` is the row of the launching call of each.
    """
    events = trace.events
    over = np.zeros(len(known), np.int64)
    returned = events.start_ns[call] + events.duration_ns[call]
    # With several devices it is not known for which device a call waited.
    if len(work.devices) == 1:
        waits = np.flatnonzero(_named(trace, _WAITS) & (find_roles(trace) == Role.CALL))
        waits = waits[np.argsort(events.start_ns[waits], kind="stable")]
        # The work must end before the end of the first wait that started after its launch.
        at = np.searchsorted(events.start_ns[waits], returned)
        ends = events.start_ns[waits] + events.duration_ns[waits]
        latest = np.append(ends, np.iinfo(np.int64).max)[at]
        over = np.maximum(over, work.end_ns[known] - latest)
    blocks = [direction(name) == "D2H" and "Pageable" in name for name in trace.names]
    is_blocking = np.array(blocks or [False])[events.name[work.rows[known]]]
    return np.where(is_blocking, np.maximum(over, work.end_ns[known] - returned), over)


def _named(trace: Trace, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    wanted = np.array([bool(pattern.search(name)) for name in trace.names] or [False])
    named: NDArray[np.bool_] = wanted[trace.events.name]
    return named


def find_missing_durations(trace: Trace, work: Work) -> list[Loss]:
    """Return one loss for each kind of record if too many of the kind have a duration of 0."""
    roles, is_copy = find_roles(trace), work.kind == WorkKind.COPY
    losses = _zeros(trace, DEVICE_DURATION, work.rows[is_copy])
    losses += _zeros(trace, DEVICE_DURATION, work.rows[~is_copy])
    # Calls without correlation are excluded, because plugins write counters as such calls.
    calls = (roles == Role.CALL) & (trace.events.correlation > 0)
    for of_host in (calls, roles == Role.OPERATOR):
        losses += _zeros(trace, HOST_DURATION, np.flatnonzero(of_host))
    return losses


def _zeros(trace: Trace, kind: str, rows: NDArray[np.intp]) -> list[Loss]:
    start, duration = trace.events.start_ns[rows], trace.events.duration_ns[rows]
    is_zero = duration == 0
    is_coarse = not (start % _COARSE_NS).any()
    if is_zero.sum() <= len(rows) * (_COARSE_SHARES[kind] if is_coarse else _ZERO_SHARE):
        return []
    begin, end = int(start[is_zero].min()), int(start[is_zero].max())
    there = int(((start >= begin) & (start <= end)).sum())
    return [Loss(kind, int(is_zero.sum()), len(rows), begin, end, there)]
