"""What of a window can be plotted from window to window: how busy were its devices?

Shares of the window's time, of each device as ``streams`` measures it. Of a window in which no
device was at work the same of the host: its operators, on whatever thread, and its collectives. An
operator that only asks for a collective is no work beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.intervals import shared, union
from otel_mlperf.kineto.linking.collectives import is_collective
from otel_mlperf.kineto.linking.roles import Role, find_roles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.intervals import Intervals
    from otel_mlperf.kineto.counting.streams import Stream
    from otel_mlperf.kineto.counting.window_numbers import WindowNumbers
    from otel_mlperf.kineto.trace_events import Trace
    from otel_mlperf.names import Metric

_ASKING: Final = ("c10d::", "_c10d_functional::", "record_param_comms")
_OPERATOR, _COLLECTIVE = 1, 2


class Figure(NamedTuple):
    """One point of a metric."""

    name: str
    labels: dict[str, str]
    value: float


def find_figures(trace: Trace, numbers: WindowNumbers) -> list[Figure]:
    """The points of a window; none where nothing is known."""
    events = sum(count for count, _ in numbers.categories.values())
    found = [_figure(names.WINDOW_EVENTS, events)]
    length = numbers.end_ns - numbers.start_ns
    if length <= 0:
        return found
    for one in numbers.devices:
        found += _of_device(one)
    return found if numbers.devices else found + _of_host(trace, numbers.start_ns, length)


def _figure(metric: Metric, value: float, **labels: str) -> Figure:
    return Figure(metric.name, labels, value)


def _of_device(one: Stream) -> list[Figure]:
    labels = {names.DEVICE_INDEX: str(one.device)}
    times = {
        names.WINDOW_DEVICE_BUSY: one.busy_ns,
        names.WINDOW_DEVICE_IDLE: one.idle_ns,
        names.WINDOW_DEVICE_COMMUNICATION: one.communication_ns,
        names.WINDOW_DEVICE_EXPOSED: one.exposed_communication_ns,
    }
    return [Figure(metric.name, labels, ns / one.window_ns) for metric, ns in times.items()]


def _of_host(trace: Trace, start_ns: int, length: int) -> list[Figure]:
    """How much of the time an operator ran; and a collective, if there was one."""
    roles, kind = find_roles(trace), _kinds(trace)
    is_operator = roles == Role.OPERATOR
    is_talk = (roles == Role.ANNOTATION) & (kind == _COLLECTIVE)
    if not is_operator.any():
        return []
    busy = int(_covered(trace, is_operator, start_ns, length).length_ns.sum())
    found = [
        _figure(names.WINDOW_HOST_BUSY, busy / length),
        _figure(names.WINDOW_HOST_IDLE, (length - busy) / length),
    ]
    if is_talk.any():
        talk = _covered(trace, is_talk, start_ns, length)
        work = _covered(trace, is_operator & (kind == _OPERATOR), start_ns, length)
        exposed = int(shared([talk, work], 1)[0, 1])
        found += [
            _figure(names.WINDOW_HOST_COMMUNICATION, int(talk.length_ns.sum()) / length),
            _figure(names.WINDOW_HOST_EXPOSED, exposed / length),
        ]
    return found


def _kinds(trace: Trace) -> NDArray[np.uint8]:
    """Of each event by its name: a collective, what asks for one (0), or anything else."""
    kinds = [
        _COLLECTIVE if is_collective(name) else 0 if name.startswith(_ASKING) else _OPERATOR
        for name in trace.names
    ]
    return np.array(kinds or [0], np.uint8)[trace.events.name]


def _covered(trace: Trace, which: NDArray[np.bool_], start_ns: int, length: int) -> Intervals:
    """When at least one of these events went on, within the window."""
    start = trace.events.start_ns[which]
    end = start + np.maximum(trace.events.duration_ns[which], 0)
    limits = (start_ns, start_ns + length)
    return union(np.clip(start, *limits), np.clip(end, *limits), np.zeros(len(start), np.int64))
