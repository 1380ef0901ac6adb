"""Impossible record times: device work that is too early or too late, and missing durations.

No work starts before it was launched, and none ends after a call that waited for it has returned.
Otherwise the clock of the device is wrong, and so are gaps, delays and the window itself. If work
even changes places with work that was launched earlier, the ids are wrong and not the clock.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.counting.device_work import WorkKind, direction
from otel_mlperf.kineto.counting.window_losses import (
    CORRELATION,
    DEVICE_DURATION,
    EARLY,
    HOST_DURATION,
    LATE,
    device_loss,
)
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.store.window_facts import Loss

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace

_CLOCK_NS: Final = 10_000
"""Maximum difference between the clocks of host and device: Kineto aligns them to microseconds."""
_CLOCK_SHARE: Final = 0.01
_ZERO_SHARE: Final = 0.05
_COARSE_NS: Final = 1_000
_COARSE_SHARES: Final = {DEVICE_DURATION: 0.5, HOST_DURATION: 0.99}
"""If times are whole microseconds, shorter records have no duration: most calls have none."""
_WAITS: Final = re.compile(r"DeviceSynchronize|CtxSynchronize")


def find_clock_losses(
    trace: Trace, links: Links, work: Work, foreign: NDArray[np.bool_]
) -> list[Loss]:
    """Return work at impossible times; ``foreign`` work has a wrong correlation and is skipped."""
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
    """Return whether work of a stream runs in another order than it was launched in."""
    order = np.lexsort((work.start_ns[known], work.stream[known]))
    stream, launched = work.stream[known][order], trace.events.start_ns[call[order]]
    is_next = stream[1:] == stream[:-1]
    is_turned = is_next & (launched[1:] < launched[:-1] - _CLOCK_NS)
    return bool(is_turned.sum() > _CLOCK_SHARE * is_next.sum())


def _overdue(
    trace: Trace, work: Work, known: NDArray[np.intp], call: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return how long work ran past the end of a wait for it; 0: no call waited for it."""
    events = trace.events
    over = np.zeros(len(known), np.int64)
    returned = events.start_ns[call] + events.duration_ns[call]
    # With several devices it is not known which one was waited for.
    if len(work.devices) == 1:
        waits = np.flatnonzero(_named(trace, _WAITS) & (find_roles(trace) == Role.CALL))
        waits = waits[np.argsort(events.start_ns[waits], kind="stable")]
        # The first wait that started after the launch had returned: the work has ended by its end.
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
    """Return kinds of records of which many have no duration at all."""
    roles, is_copy = find_roles(trace), work.kind == WorkKind.COPY
    losses = _zeros(trace, DEVICE_DURATION, work.rows[is_copy])
    losses += _zeros(trace, DEVICE_DURATION, work.rows[~is_copy])
    # Plugins write their counters as calls, which have no correlation and no duration.
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
