"""Missing host records: operators, allocations, Python frames and steps that the file lacks.

The profiler numbers its records of all kinds (see ``record_numbers``), so that gaps in the numbers
are missing records. Records that are missing after the last number leave no gap: missing operators
are then recognised by the External ids of the calls that they made, and missing frames by operators
that run without any new frame. The file's header records whether frames and allocations were
requested. Missing steps are recognised by the numbers in their names.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.counting.window_losses import (
    ALLOCATION,
    FRAME,
    FRAMES_END,
    HOST,
    OPERATOR,
    STEP,
    TOLERATED_SHARE,
)
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.store.window_facts import Loss

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import NumberedRecords, Trace

_KINDS: Final = {"memory": ALLOCATION, "python_function": FRAME}
_REQUESTED: Final = {"with_stack": FRAME, "profile_memory": ALLOCATION}
_MIN_PRESENT: Final = 0.1
"""Minimum share of records in the file; if fewer are present, the file was shortened on purpose."""
_MAX_LATE: Final = 0.25
"""Maximum share of operators that start after the last Python frame in intact files.

It is not 0 because compiled code runs operators without frames.
"""
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,9})")
_MAX_STEPS: Final = 5


class _Part(NamedTuple):
    """A range of record numbers for which the file contains records."""

    kinds: frozenset[str]
    records: int
    first: int
    last: int
    start_ns: int
    end_ns: int


class _Gap(NamedTuple):
    """A range of record numbers that the file lacks."""

    kinds: frozenset[str]
    missing: int
    start_ns: int
    end_ns: int


def find_lost_numbers(trace: Trace, window: tuple[int, int]) -> list[Loss]:
    """Return the losses of host records, one for each kind with gaps in its record numbers.

    A kind that was requested from the profiler but has no record at all is also a loss; it covers
    the whole ``window`` (start and end in ns).
    """
    parts = _merged(trace.numbered)
    present = sum(part.records for part in parts)
    if not parts or present < (parts[-1].last + 1) * _MIN_PRESENT:
        return []
    known = frozenset().union(*(part.kinds for part in parts))
    losses = [
        Loss(kind, 1, 1, *window, what="no such record exists")
        for field, kind in _REQUESTED.items()
        if kind not in known and trace.header.get(field) == 1
    ]
    by_kind: dict[frozenset[str], list[_Gap]] = {}
    for gap in _gaps(parts, window):
        by_kind.setdefault(gap.kinds, []).append(gap)
    for kinds, gaps in by_kind.items():
        have = sum(part.records for part in parts if part.kinds & kinds)
        losses += _lost(kinds, gaps, have)
    return losses


def _lost(kinds: frozenset[str], gaps: list[_Gap], have: int) -> Iterator[Loss]:
    missing = sum(gap.missing for gap in gaps)
    if missing > TOLERATED_SHARE * (have + missing):
        begin, end = min(gap.start_ns for gap in gaps), max(gap.end_ns for gap in gaps)
        kind = next(iter(kinds)) if len(kinds) == 1 else HOST
        yield Loss(kind, missing, have + missing, begin, end)


def _merged(numbered: Sequence[NumberedRecords]) -> list[_Part]:
    """Return the parts in order of record number; overlapping parts (annotations) are merged."""
    merged: list[_Part] = []
    for record in sorted(numbered, key=lambda record: record.first):
        part = _Part(frozenset({_KINDS.get(record.category, OPERATOR)}), *record[1:])
        if merged and part.first <= merged[-1].last:
            other = merged[-1]
            part = other._replace(
                kinds=other.kinds | part.kinds,
                records=other.records + part.records,
                last=max(other.last, part.last),
                start_ns=min(other.start_ns, part.start_ns),
                end_ns=max(other.end_ns, part.end_ns),
            )
            merged.pop()
        merged.append(part)
    return merged


def _gaps(parts: list[_Part], window: tuple[int, int]) -> Iterator[_Gap]:
    if parts[0].first:
        yield _Gap(parts[0].kinds, parts[0].first, window[0], parts[0].start_ns)
    for part in parts:
        if (inside := part.last - part.first + 1 - part.records) > 0:
            yield _Gap(part.kinds, inside, part.start_ns, part.end_ns)
    for part, following in pairwise(parts):
        if (between := following.first - part.last - 1) > 0:
            yield _between(part, following, between, window)


def _between(before: _Part, after: _Part, count: int, window: tuple[int, int]) -> _Gap:
    """Return the gap from the end of ``before`` to the start of ``after``.

    If they have no kind in common, it extends instead to the end of the window or from the start
    of the window, whichever is longer.
    """
    if before.kinds & after.kinds:
        return _Gap(before.kinds | after.kinds, count, before.end_ns, after.start_ns)
    if window[1] - before.end_ns > after.start_ns - window[0]:
        return _Gap(before.kinds, count, before.end_ns, window[1])
    return _Gap(after.kinds, count, window[0], after.start_ns)


def find_lost_operators(trace: Trace) -> list[Loss]:
    """Return the loss of operators that calls refer to by External id but that have no record."""
    events, roles = trace.events, find_roles(trace)
    is_owner = np.isin(roles, (Role.OPERATOR, Role.ANNOTATION, Role.HOST))
    owners = np.unique(events.external[is_owner & (events.external > 0)])
    referring = (
        (roles == Role.CALL) & (events.external > 0) & (events.external != events.correlation)
    )
    ids, first = np.unique(events.external[referring], return_index=True)
    lost = ~np.isin(ids, owners)
    # Without any operator in the file, operators were not recorded at all.
    if not len(owners) or lost.sum() <= TOLERATED_SHARE * len(ids):
        return []
    start = events.start_ns[np.flatnonzero(referring)[first[lost]]]
    what = "among operators that called the device"
    return [
        Loss(OPERATOR, int(lost.sum()), len(ids), int(start.min()), int(start.max()), what=what)
    ]


def find_end_of_frames(trace: Trace, links: Links) -> list[Loss]:
    """Return a loss if many operators ran after the last recorded Python frame, else an empty list.

    Frames that are missing at the end leave no gap in the record numbers. Operators on threads with
    backward operators do not count, because they are called by autograd, not by Python.
    """
    start, roles = trace.events.start_ns, find_roles(trace)
    frames = start[roles == Role.PYTHON]
    if not len(frames):
        return []
    backward = np.unique(trace.events.track[links.forward != NONE])
    called = (roles == Role.OPERATOR) & ~np.isin(trace.events.track, backward)
    late = start[called & (start > frames.max())]
    if len(late) <= _MAX_LATE * called.sum():
        return []
    times = int(frames.max()), int(late.max())
    return [Loss(FRAMES_END, len(late), int(called.sum()), *times)]


def find_lost_steps(trace: Trace) -> list[Loss]:
    """Return the loss of profiler steps without a host annotation: gaps in the step numbers."""
    roles, events = find_roles(trace), trace.events
    steps = {
        at: int(found[1]) for at, name in enumerate(trace.names) if (found := _STEP.fullmatch(name))
    }
    is_step = np.isin(events.name, list(steps))
    on_host = {steps[name] for name in events.name[is_step & (roles == Role.ANNOTATION)].tolist()}
    copies = np.flatnonzero(is_step & (roles == Role.DEVICE_ANNOTATION))
    on_device = {steps[name] for name in events.name[copies].tolist()}
    known = on_host | on_device
    if not known or max(known) - min(known) > 2 * len(known):
        return []
    lost = sorted(set(range(min(known), max(known) + 1)) - on_host)
    if not lost:
        return []
    rows = np.flatnonzero(is_step)
    begin, end = events.start_ns[rows], events.start_ns[rows] + events.duration_ns[rows]
    what = ", ".join(f"ProfilerStep#{number}" for number in lost[:_MAX_STEPS])
    of = len(lost) + len(on_host)
    return [Loss(STEP, len(lost), of, int(begin.min()), int(end.max()), what=what)]
