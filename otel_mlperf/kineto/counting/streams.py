r"""Utilisation of each device and its streams: busy, idle, overlap, gaps and launch delays.

Formulas, all in whole nanoseconds, for a device over the work of all its streams and for each
stream over its own:

- ``window``: from the start of the first event to the end of the last event, of host and devices.
  Python functions do not count, because they may start with the program. Outside the profiler's own
  span, only device work widens the window.
- ``busy = |union of kernels, copies and memsets|``; ``idle = window - busy``.
- ``overlap = sum of durations - busy``, for each stream separately: only graphs and dependent
  launches run several pieces of work of one stream concurrently.
- ``gap = (last end - first start) - busy``: idle time between work, without the idle time before
  the first and after the last work.
- ``compute``, ``communication``, ``copy``: the union of the work of that kind; for two kinds: the
  time in which work of both kinds was running.
- ``exposed communication = |communication \ compute|``, ``exposed copy = |copy \ compute|``.
- host wait: the gaps before work whose launching call started after the start of the gap; device
  wait: the gaps before work whose call started earlier; unknown wait: the gaps before work whose
  call is not in the trace.
- launch delay: start of the work - end of the call that launched it; 0 where the work was *early*,
  that is, started before the call returned.

Assumption: the clocks of host and device agree, as Kineto aligns them; only host wait and launch
delay depend on it. Work of other processes on the device is not in the trace and counts as idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_mlperf.intervals import gaps, nearest_rank, shared, sums, union
from otel_mlperf.kineto.counting.device_work import WorkKind
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.tables.window_tables import StreamRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.intervals import Intervals
    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.trace_events import Events, Trace

_COMPUTE, _TALK, _COPY = (1 << kind for kind in WorkKind)


def window_of(trace: Trace, work: Work) -> tuple[int, int]:
    """Return start and end of the window in nanoseconds; both are 0 if the trace has no events."""
    events = trace.events
    roles = find_roles(trace)
    rows = np.flatnonzero((roles != Role.PYTHON) & (roles != Role.WINDOW))
    spans = _extent(events, rows) or _extent(events, np.arange(len(events)))
    if spans is None:
        return 0, 0
    begin, end = spans
    profiler = _extent(events, np.flatnonzero(roles == Role.WINDOW))
    if profiler is not None and begin < profiler[1] and profiler[0] < end:
        begin, end = max(begin, profiler[0]), min(end, profiler[1])
    on_device = _extent(events, work.rows) or (begin, end)
    return min(begin, on_device[0]), max(end, on_device[1])


def _extent(events: Events, rows: NDArray[np.intp]) -> tuple[int, int] | None:
    start = events.start_ns[rows]
    end = start + np.maximum(events.duration_ns[rows], 0)
    return (int(start.min()), int(end.max())) if len(rows) else None


def measure_devices(trace: Trace, work: Work, launch: NDArray[np.int32]) -> list[StreamRow]:
    """Return the utilisation of devices; ``launch`` is the row of each event's launching call."""
    keys: list[tuple[int, int | None]] = [(device, None) for device in work.devices]
    return _measure(trace, work, launch, work.device, keys)


def measure_streams(trace: Trace, work: Work, launch: NDArray[np.int32]) -> list[StreamRow]:
    """Return the utilisation of streams; ``launch`` is the row of each event's launching call."""
    return _measure(trace, work, launch, work.stream, list(work.streams))


class Waits(NamedTuple):
    """Gaps in the work of devices or streams, and their causes; one item for each gap.

    A gap is a host wait (``host``), a device wait (``device``), or unknown if both are false.
    """

    gap: Intervals
    row: NDArray[np.intp]
    """Row, in the trace, of the work that ends the gap."""
    host: NDArray[np.bool_]
    device: NDArray[np.bool_]


def find_waits(
    trace: Trace, work: Work, launch: NDArray[np.int32], group: NDArray[np.int64]
) -> Waits:
    """Return the gaps between the work of each group, and their causes.

    ``group`` is the device or the stream of each piece of ``work``; ``launch`` is the row of each
    event's launching call.
    """
    gap = gaps(union(work.start_ns, work.end_ns, group))
    row = work.rows[gap.first]
    call = launch[row]
    # If the work was requested only after the gap started, the host was late. Otherwise the device
    # waited for its own previous work, an event or another stream.
    late = trace.events.start_ns[np.maximum(call, 0)] > gap.start_ns
    return Waits(gap, row, (call != NONE) & late, (call != NONE) & ~late)


def _measure(
    trace: Trace,
    work: Work,
    launch: NDArray[np.int32],
    group: NDArray[np.int64],
    keys: list[tuple[int, int | None]],
) -> list[StreamRow]:
    n = len(keys)
    begin, end = window_of(trace, work)
    on = shared([work.of(kind, group) for kind in WorkKind], n)
    columns = _busy(work, group, n) | _waited(find_waits(trace, work, launch, group), n)
    columns["overlap_ns"] = _overlap(work, group, n)
    return [
        StreamRow(
            device=device,
            stream=stream,
            window_ns=end - begin,
            idle_ns=end - begin - int(columns["busy_ns"][i]),
            **_delays(trace, work.rows[group == i], launch),
            **dict[str, Any]((name, int(column[i])) for name, column in columns.items()),
            **_kinds(on[i]),
        )
        for i, (device, stream) in enumerate(keys)
    ]


def _busy(work: Work, group: NDArray[np.int64], n: int) -> dict[str, NDArray[np.int64]]:
    whole = union(work.start_ns, work.end_ns, group)
    opens = np.searchsorted(whole.group, np.arange(n), "left")
    closes = np.searchsorted(whole.group, np.arange(n), "right") - 1
    return {
        "first_ns": whole.start_ns[opens],
        "last_ns": whole.end_ns[closes],
        "count": np.bincount(group, minlength=n),
        "busy_ns": sums(whole.length_ns, whole.group, n),
    }


def _overlap(work: Work, group: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    streams = len(work.streams)
    alone = union(work.start_ns, work.end_ns, work.stream)
    over = sums(work.end_ns - work.start_ns, work.stream, streams)
    over -= sums(alone.length_ns, alone.group, streams)
    of_stream = np.zeros(streams, np.int64)
    of_stream[work.stream] = group
    return sums(over, of_stream, n)


def _waited(waits: Waits, n: int) -> dict[str, NDArray[np.int64]]:
    length, group = waits.gap.length_ns, waits.gap.group
    unknown = ~waits.host & ~waits.device
    return {
        "gap_ns": sums(length, group, n),
        "gaps": np.bincount(group, minlength=n),
        "host_wait_ns": sums(length * waits.host, group, n),
        "device_wait_ns": sums(length * waits.device, group, n),
        "unknown_wait_ns": sums(length * unknown, group, n),
    }


def _kinds(on: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "compute_ns": _time(on, _COMPUTE),
        "communication_ns": _time(on, _TALK),
        "copy_ns": _time(on, _COPY),
        "compute_communication_ns": _time(on, _COMPUTE | _TALK),
        "compute_copy_ns": _time(on, _COMPUTE | _COPY),
        "communication_copy_ns": _time(on, _TALK | _COPY),
        "exposed_communication_ns": _time(on, _TALK, without=_COMPUTE),
        "exposed_copy_ns": _time(on, _COPY, without=_COMPUTE),
    }


def _time(on: NDArray[np.int64], kinds: int, without: int = 0) -> int:
    """Return the time with work of all kinds in mask ``kinds`` and none in mask ``without``.

    ``on`` contains, by mask, the time with work of exactly these kinds.
    """
    return sum(
        int(spent) for mask, spent in enumerate(on) if mask & kinds == kinds and not mask & without
    )


def _delays(trace: Trace, rows: NDArray[np.intp], launch: NDArray[np.int32]) -> dict[str, Any]:
    rows = rows[launch[rows] != NONE]
    call, events = launch[rows], trace.events
    # Delays count from the end of the call, because the call requests the work before it returns.
    # Work that starts before the end of its call counts as early, with a delay of 0.
    delay = events.start_ns[rows] - events.start_ns[call] - events.duration_ns[call]
    early = int((delay < 0).sum())
    delay = np.sort(np.maximum(delay, 0))
    p50, p95, maximum = (
        (int(delay[nearest_rank(len(delay), part)]) for part in (50, 95, 100))
        if len(delay)
        else (None, None, None)
    )
    return {
        "launches": len(delay),
        "early": early,
        "delay_p50_ns": p50,
        "delay_p95_ns": p95,
        "delay_max_ns": maximum,
    }
