"""Completeness of a profiler window, and its longest part without missing device records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.intervals import gaps, shared, sums, union
from otel_mlperf.kineto.counting.device_work import WorkKind, find_work
from otel_mlperf.kineto.counting.doubtful_records import (
    find_clock_losses,
    find_doubtful,
    find_duplicates,
    find_lost_arrows,
    find_missing_durations,
)
from otel_mlperf.kineto.counting.host_records import (
    find_end_of_frames,
    find_lost_numbers,
    find_lost_operators,
    find_lost_steps,
)
from otel_mlperf.kineto.counting.streams import window_of
from otel_mlperf.kineto.counting.unanswered_launches import (
    find_launches,
    find_lost_nodes,
    find_unanswered,
)
from otel_mlperf.kineto.counting.window_losses import (
    HOST,
    LOST_WORK,
    NUMBERED,
    OPERATOR,
    RANKS,
    TIMELESS,
    TOLERATED_SHARE,
    device_loss,
    judge_window,
)
from otel_mlperf.kineto.linking.linked_events import find_roles
from otel_mlperf.kineto.linking.merged_ranks import are_mixed
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.store.window_facts import DevicePart, Loss, WholePart

if TYPE_CHECKING:
    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.counting.unanswered_launches import Launches
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace
    from otel_mlperf.store.window_facts import WindowCompleteness

_MIN_PART: Final = 10
"""Reciprocal of the minimum share of the window that a measured part must have."""


def find_completeness(trace: Trace, links: Links) -> WindowCompleteness:
    """Return the completeness of a profiler window, with its losses: missing device work first."""
    work = find_work(trace)
    window = window_of(trace, work)
    launches = find_launches(trace, links, work)
    unanswered = int(launches.is_missing.sum())
    doubtful = find_doubtful(trace, links, work, launches)
    losses: list[Loss] = []
    # Each record with a wrong correlation may be the missing record of one launch.
    is_lost = unanswered > int(doubtful.foreign.sum()) and launches.lack_many
    if is_lost:
        losses += find_unanswered(trace, launches)
    losses += find_lost_nodes(trace, links, work, launches)
    clock = find_clock_losses(trace, links, work, doubtful.foreign)
    losses += clock + find_missing_durations(trace, work) + doubtful.losses(work)
    losses += find_duplicates(trace) + _of_host(trace, window)
    losses += find_end_of_frames(trace, links) + find_lost_steps(trace)
    # Arrows are matched with records by start time, which fails if the clock is wrong.
    losses += [] if clock else find_lost_arrows(trace, links, work, launches, doubtful.foreign)
    losses = _of_mixed_ranks(trace, work, losses)
    losses += _of_timeless(trace, work, losses, window)
    part = _find_whole(trace, work, launches, window) if is_lost else None
    renumbered = 0 if is_lost else min(unanswered, int(doubtful.foreign.sum()))
    return judge_window(
        len(launches.rows),
        len(launches.rows) - unanswered + renumbered,
        losses,
        window[0],
        WholePart(*part, _measure(work, *part)) if part else None,
    )


def _of_timeless(
    trace: Trace, work: Work, losses: list[Loss], window: tuple[int, int]
) -> list[Loss]:
    """Return the loss of work without a usable time; [] if ``losses`` already report lost work."""
    lost, of = trace.timeless_work, trace.timeless_work + len(work.rows)
    is_reported = any(loss.kind in LOST_WORK for loss in losses)
    return (
        [Loss(TIMELESS, lost, of, *window)]
        if lost > TOLERATED_SHARE * of and not is_reported
        else []
    )


def _of_mixed_ranks(trace: Trace, work: Work, losses: list[Loss]) -> list[Loss]:
    """Return ``losses``, with one loss in place of those derived from ids if ranks are mixed."""
    if not are_mixed(trace, find_roles(trace)):
        return losses
    unaffected = [loss for loss in losses if loss.kind not in NUMBERED]
    return device_loss(RANKS, work, np.ones(len(work.rows), np.bool_)) + unaffected


def _find_whole(
    trace: Trace, work: Work, launches: Launches, window: tuple[int, int]
) -> tuple[int, int] | None:
    """Return start and end of the longest part of the window without missing device work.

    Return None if that part is shorter than a tenth of the window. Missing work ran between its
    launch and the start of the next recorded work that was launched on its stream (on any stream,
    if its stream is not known).
    """
    missing = launches.is_missing
    start = trace.events.start_ns[launches.rows]
    upto = np.full(len(start), window[1], np.int64)
    for stream in np.unique(launches.stream[missing]).tolist():
        mine = (launches.stream == stream) | (stream == NONE)
        answered = np.flatnonzero(mine & ~missing)
        asks = np.flatnonzero(missing & (launches.stream == stream))
        at = np.searchsorted(answered, asks)
        begins = np.append(work.start_ns[launches.answer[answered]], window[1])
        upto[asks] = begins[at]
    bounds = np.array([window[0], window[1]])
    lost = union(
        np.concatenate((bounds, start[missing])),
        np.concatenate((bounds, np.clip(upto[missing], start[missing], window[1]))),
        np.zeros(2 + int(missing.sum()), np.int64),
    )
    whole = gaps(lost)
    # Parts without answered launches are excluded, because nothing could be missing in them.
    first, last = (np.searchsorted(start[~missing], at) for at in (whole.start_ns, whole.end_ns))
    length = np.where(last > first, whole.length_ns, 0)
    if length.max(initial=0) * _MIN_PART < max(window[1] - window[0], 1):
        return None
    longest = int(length.argmax())
    return int(whole.start_ns[longest]), int(whole.end_ns[longest])


def _measure(work: Work, begin_ns: int, end_ns: int) -> list[DevicePart]:
    start, end = (np.clip(at, begin_ns, end_ns) for at in (work.start_ns, work.end_ns))
    inside, n = work._replace(start_ns=start, end_ns=end), len(work.devices)
    busy = union(start, end, work.device)
    busy_ns = sums(busy.length_ns, busy.group, n)
    on = shared([inside.of(kind, work.device) for kind in WorkKind], n)
    kinds = np.arange(on.shape[1])
    talks = (kinds >> WorkKind.COMMUNICATION & 1).astype(bool)
    alone = talks & ~(kinds >> WorkKind.COMPUTE & 1).astype(bool)
    return [
        DevicePart(device, int(busy_ns[i]), int(on[i, talks].sum()), int(on[i, alone].sum()))
        for i, device in enumerate(work.devices)
    ]


def _of_host(trace: Trace, window: tuple[int, int]) -> list[Loss]:
    lost, named = find_lost_numbers(trace, window), find_lost_operators(trace)
    numbered = [loss for loss in lost if loss.kind in (OPERATOR, HOST)]
    if named and (not numbered or named[0].missing > numbered[0].missing):
        return named + [loss for loss in lost if loss.kind != OPERATOR]
    return lost
