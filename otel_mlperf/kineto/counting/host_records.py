"""Missing host records: operators, allocations, Python frames and steps that the file lacks.

The profiler's own numbers show how many records are missing, of whatever kind
(``record_numbers``). They do not show what is missing after the last number. Missing operators are
recognised there by the External ids of the work that they launched, and missing frames by the
operators that run without any new frame. The header shows whether frames and allocations were
requested, even if the file contains none. Steps are numbered in their names.
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
    LEAST_SHARE,
    OPERATOR,
    STEP,
)
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.store.window_facts import Loss

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import NumberedRecords, Trace

_KINDS: Final = {"memory": ALLOCATION, "python_function": FRAME}
_ASKED_FOR: Final = {"with_stack": FRAME, "profile_memory": ALLOCATION}
_LEAST_THERE: Final = 0.1
"""A file with a smaller share of its records was cut to size by hand, which is not a loss."""
_MOST_LATE: Final = 0.25
"""Maximum share of operators that may start after the last Python frame, as in compiled code."""
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,9})")
_MOST_STEPS: Final = 5


class _Part(NamedTuple):
    """A range of consecutive record numbers in the file."""

    kinds: frozenset[str]
    records: int
    first: int
    last: int
    start_ns: int
    end_ns: int


class _Gap(NamedTuple):
    """A range of missing record numbers."""

    kinds: frozenset[str]
    missing: int
    start_ns: int
    end_ns: int


def find_lost_numbers(trace: Trace, window: tuple[int, int]) -> list[Loss]:
    """Return records whose numbers are not in the file, by kind; and kinds without any record."""
    parts = _merged(trace.numbered)
    there = sum(part.records for part in parts)
    if not parts or there < (parts[-1].last + 1) * _LEAST_THERE:
        return []
    known = frozenset().union(*(part.kinds for part in parts))
    losses = [
        Loss(kind, 1, 1, *window, what="no such record exists")
        for field, kind in _ASKED_FOR.items()
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
    if missing > LEAST_SHARE * (have + missing):
        begin, end = min(gap.start_ns for gap in gaps), max(gap.end_ns for gap in gaps)
        kind = next(iter(kinds)) if len(kinds) == 1 else HOST
        yield Loss(kind, missing, have + missing, begin, end)


def _merged(numbered: Sequence[NumberedRecords]) -> list[_Part]:
    """Return the parts by number; overlapping ones, as of annotations and operators, are merged."""
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
    """Attribute numbers between two kinds to the kind that lacks more of the window."""
    if before.kinds & after.kinds:
        return _Gap(before.kinds | after.kinds, count, before.end_ns, after.start_ns)
    if window[1] - before.end_ns > after.start_ns - window[0]:
        return _Gap(before.kinds, count, before.end_ns, window[1])
    return _Gap(after.kinds, count, window[0], after.start_ns)


def find_lost_operators(trace: Trace) -> list[Loss]:
    """Return operators that calls refer to but that have no record."""
    events, roles = trace.events, find_roles(trace)
    is_owner = np.isin(roles, (Role.OPERATOR, Role.ANNOTATION, Role.HOST))
    owners = np.unique(events.external[is_owner & (events.external > 0)])
    told = (roles == Role.CALL) & (events.external > 0) & (events.external != events.correlation)
    ids, first = np.unique(events.external[told], return_index=True)
    lost = ~np.isin(ids, owners)
    # Without any operator in the file, operators were not recorded at all.
    if not len(owners) or lost.sum() <= LEAST_SHARE * len(ids):
        return []
    start = events.start_ns[np.flatnonzero(told)[first[lost]]]
    what = "among operators that called the device"
    return [
        Loss(OPERATOR, int(lost.sum()), len(ids), int(start.min()), int(start.max()), what=what)
    ]


def find_end_of_frames(trace: Trace, links: Links) -> list[Loss]:
    """Return operators that Python called after its last frame, whose numbers cannot be missed.

    Operators on threads that run backward operators do not count: autograd calls them itself.
    """
    start, roles = trace.events.start_ns, find_roles(trace)
    frames = start[roles == Role.PYTHON]
    if not len(frames):
        return []
    backward = np.unique(trace.events.track[links.forward != NONE])
    called = (roles == Role.OPERATOR) & ~np.isin(trace.events.track, backward)
    late = start[called & (start > frames.max())]
    if len(late) <= _MOST_LATE * called.sum():
        return []
    times = int(frames.max()), int(late.max())
    return [Loss(FRAMES_END, len(late), int(called.sum()), *times)]


def find_lost_steps(trace: Trace) -> list[Loss]:
    """Return steps without an annotation on the host, by the numbers of those that have one."""
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
    what = ", ".join(f"ProfilerStep#{number}" for number in lost[:_MOST_STEPS])
    of = len(lost) + len(on_host)
    return [Loss(STEP, len(lost), of, int(begin.min()), int(end.max()), what=what)]
