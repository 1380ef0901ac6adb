"""Exact totals of a profiler window, and the points of its metrics.

Totals are whole nanoseconds and bytes of all events, independent of the span budget. For each name,
stream, section, step and phase they contain ``count``, ``total`` (sum of durations), ``self`` (see
``totals.self_times``), ``min``, ``max`` and the quantiles of ``totals``.

The metrics are shares of the window's time, for each device as measured by ``streams``. For a
window without device work, the same shares are computed for the host: operators on any thread, and
collectives. An operator that only requests a collective does not count as concurrent work. If a
window lacks device records, the shares cover its longest part without missing records. Without such
a part, the metrics of devices have no points.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.intervals import shared, sums, union
from otel_mlperf.kineto.counting.allocator_memory import follow_memory
from otel_mlperf.kineto.counting.attribution import find_attribution
from otel_mlperf.kineto.counting.collective_totals import count_collectives
from otel_mlperf.kineto.counting.completeness import find_completeness
from otel_mlperf.kineto.counting.device_work import count_copies, find_work
from otel_mlperf.kineto.counting.gaps import find_gaps
from otel_mlperf.kineto.counting.streams import measure_devices, measure_streams, window_of
from otel_mlperf.kineto.counting.window_totals import window_totals
from otel_mlperf.kineto.linking.collectives import collectives, is_collective
from otel_mlperf.kineto.linking.device_tracks import TrackKind, find_device_tracks, is_of_list
from otel_mlperf.kineto.linking.linked_events import Role, find_roles, is_category_known
from otel_mlperf.kineto.linking.sections import no_sections
from otel_mlperf.store.window_facts import UnknownRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.intervals import Intervals
    from otel_mlperf.journal.profiler_windows import Window
    from otel_mlperf.kineto.counting.replayed_graphs import ReplayedGraphs
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.trace_events import Trace
    from otel_mlperf.names import Metric
    from otel_mlperf.store.window_facts import (
        CollectiveTotal,
        DevicePart,
        WholePart,
        WindowCompleteness,
    )
    from otel_mlperf.tables.window_tables import (
        AllocatorRow,
        CopyRow,
        GapRow,
        StreamRow,
        TotalRow,
    )


@dataclass(frozen=True, slots=True)
class WindowNumbers:
    """All exact totals of one profiler window, as counted by ``count``."""

    start_ns: int
    end_ns: int
    categories: dict[str, tuple[int, int]]
    """Number of events and sum of their durations, by category."""
    totals: list[TotalRow]
    devices: list[StreamRow]
    streams: list[StreamRow]
    copies: list[CopyRow]
    gaps: list[GapRow]
    memory: list[AllocatorRow]
    steps: list[str]
    completeness: WindowCompleteness
    """Completeness of the window's records."""
    collectives: list[CollectiveTotal]
    """Time and bytes of the kernels of collective operations."""
    unknown_rows: list[UnknownRows]
    """Rows of the timeline that may belong to a device, but are not counted as device work."""
    replayed: ReplayedGraphs | None = None
    """Operators of replayed CUDA graphs; None if no trace of their capture was given."""


def count(
    trace: Trace,
    links: Links,
    sections: Sections | None = None,
    window: Window | None = None,
    completeness: WindowCompleteness | None = None,
    replayed: ReplayedGraphs | None = None,
    of_collectives: list[CollectiveTotal] | None = None,
) -> WindowNumbers:
    """Return all exact totals of a profiler window.

    ``sections`` and ``window`` supply the recorded sections, steps and phases of a run.
    ``completeness`` and ``of_collectives`` are computed if they are None. ``replayed`` contains the
    operators of replayed graphs.

    Raises:
        TraceError: the trace file cannot be read again.
    """
    work = find_work(trace)
    where = find_attribution(trace, links, sections or no_sections(), window)
    start, end = window_of(trace, work)
    return WindowNumbers(
        start_ns=start,
        end_ns=end,
        categories=_categories(trace),
        totals=window_totals(trace, links, work, where, replayed),
        devices=measure_devices(trace, work, links.launch),
        streams=measure_streams(trace, work, links.launch),
        copies=count_copies(trace, work),
        gaps=find_gaps(trace, work, links),
        memory=follow_memory(trace),
        steps=where.steps,
        completeness=completeness or find_completeness(trace, links),
        collectives=(
            count_collectives(trace, collectives(trace, links))
            if of_collectives is None
            else of_collectives
        ),
        unknown_rows=find_unknown_rows(trace),
        replayed=replayed,
    )


def _categories(trace: Trace) -> dict[str, tuple[int, int]]:
    events, n = trace.events, len(trace.categories)
    many = np.bincount(events.category, minlength=n)
    total = sums(events.duration_ns, events.category, n)
    return {
        name: (int(many[at]), int(total[at]))
        for at, name in enumerate(trace.categories)
        if many[at]
    }


_COLLECTIVE_REQUESTS: Final = ("c10d::", "_c10d_functional::", "record_param_comms")
_OPERATOR, _COLLECTIVE = 1, 2


Figure = tuple[str, dict[str, str], float]
"""Metric name, labels and value of one point."""


def find_figures(trace: Trace, numbers: WindowNumbers) -> list[Figure]:
    """Return the metric points of a window, at least the point with the number of events."""
    events = sum(count for count, _ in numbers.categories.values())
    completeness = numbers.completeness
    figures = [_figure(names.WINDOW_EVENTS, events)]
    figures += [_figure(names.WINDOW_COMPLETENESS, completeness.ratio)] if events else []
    length = numbers.end_ns - numbers.start_ns
    if length <= 0:
        return figures
    if not completeness.has_device_times:
        return figures + (_of_part(completeness.whole) if completeness.whole else [])
    for device in numbers.devices:
        figures += _of_device(device, device.window_ns)
    return figures if numbers.devices else figures + _of_host(trace, numbers.start_ns, length)


def _of_part(whole: WholePart) -> list[Figure]:
    return [figure for device in whole.devices for figure in _of_device(device, whole.length_ns)]


def _figure(metric: Metric, value: float, **labels: str) -> Figure:
    return metric.name, labels, value


def _of_device(device: StreamRow | DevicePart, length_ns: int) -> list[Figure]:
    labels = {names.DEVICE_INDEX: str(device.device)}
    times = {
        names.WINDOW_DEVICE_BUSY: device.busy_ns,
        names.WINDOW_DEVICE_IDLE: length_ns - device.busy_ns,
        names.WINDOW_DEVICE_COMMUNICATION: device.communication_ns,
        names.WINDOW_DEVICE_EXPOSED: device.exposed_communication_ns,
    }
    return [(metric.name, labels, ns / length_ns) for metric, ns in times.items()]


def _of_host(trace: Trace, start_ns: int, length: int) -> list[Figure]:
    roles, kind = find_roles(trace), _kinds(trace)
    is_operator = roles == Role.OPERATOR
    is_talk = (roles == Role.ANNOTATION) & (kind == _COLLECTIVE)
    if not is_operator.any():
        return []
    busy = int(_covered(trace, is_operator, start_ns, length).length_ns.sum())
    figures = [
        _figure(names.WINDOW_HOST_BUSY, busy / length),
        _figure(names.WINDOW_HOST_IDLE, (length - busy) / length),
    ]
    if is_talk.any():
        talk = _covered(trace, is_talk, start_ns, length)
        work = _covered(trace, is_operator & (kind == _OPERATOR), start_ns, length)
        # Mask 1: only a collective, without concurrent operators.
        exposed = int(shared([talk, work], 1)[0, 1])
        figures += [
            _figure(names.WINDOW_HOST_COMMUNICATION, int(talk.length_ns.sum()) / length),
            _figure(names.WINDOW_HOST_EXPOSED, exposed / length),
        ]
    return figures


def _kinds(trace: Trace) -> NDArray[np.uint8]:
    kinds = [
        _COLLECTIVE
        if is_collective(name)
        else 0
        if name.startswith(_COLLECTIVE_REQUESTS)
        else _OPERATOR
        for name in trace.names
    ]
    of_events: NDArray[np.uint8] = np.array(kinds or [0], np.uint8)[trace.events.name]
    return of_events


def _covered(trace: Trace, which: NDArray[np.bool_], start_ns: int, length: int) -> Intervals:
    start = trace.events.start_ns[which]
    end = start + np.maximum(trace.events.duration_ns[which], 0)
    limits = (start_ns, start_ns + length)
    return union(np.clip(start, *limits), np.clip(end, *limits), np.zeros(len(start), np.int64))


_MAX_PROCESSES: Final = 8


def find_unknown_rows(trace: Trace) -> list[UnknownRows]:
    """Return the number of events on unknown rows of up to 8 processes, largest number first.

    Unknown rows are the rows of a device in an unknown format, and all rows of a file without any
    known category, device row or list of operators.
    """
    roles, tracks = find_roles(trace), find_device_tracks(trace.tracks)
    kinds = np.array([track.kind for track in tracks] or [TrackKind.HOST], np.uint8)
    kind = kinds[trace.events.track]
    is_guessed = ~is_category_known(trace)
    unknown = is_guessed & (roles == Role.HOST) & (kind == TrackKind.UNKNOWN)
    if not unknown.any() and not (roles == Role.DEVICE).any():
        # In autograd's list, arrows point to kernels that are located on the rows of operators.
        is_mixed = bool(len(trace.flows)) and any(map(is_of_list, trace.tracks))
        is_foreign = bool((is_guessed & (roles == Role.HOST)).all())
        return _count(trace, np.full(len(roles), is_mixed or is_foreign), is_device=is_mixed)
    return _count(trace, unknown, is_device=True)


def _count(trace: Trace, wanted: NDArray[np.bool_], *, is_device: bool) -> list[UnknownRows]:
    of_tracks = np.bincount(trace.events.track[wanted], minlength=len(trace.tracks)).tolist()
    events: Counter[str] = Counter()
    for track, count in zip(trace.tracks, of_tracks, strict=True):
        events[track.process or track.labels or track.pid] += count
    largest = events.most_common(_MAX_PROCESSES)
    return [UnknownRows(process=name, events=n, is_device=is_device) for name, n in largest if n]
