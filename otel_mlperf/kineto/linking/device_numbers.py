"""Device and stream numbers of device work, from its ``args`` or its row of the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.linking.device_tracks import find_device_tracks, process_numbers
from otel_mlperf.kineto.linking.linked_events import Role, is_category_known
from otel_mlperf.kineto.reading.value_columns import narrowed
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace

_MAX_DEVICES: Final = 1 << 12
"""Maximum number of (device, process) pairs; with more, device numbers are not made unique."""


def find_device_numbers(
    trace: Trace, rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the device and stream numbers of the device events in ``rows``; NONE if not known."""
    events, track = trace.events, trace.events.track[rows]
    tracks = find_device_tracks(trace.tracks)
    of_track = np.array([found[1:] for found in tracks] or [(NONE, NONE)], np.int64)
    device = np.where(events.device[rows] != NONE, events.device[rows], of_track[track, 0])
    stream = np.where(events.stream[rows] != NONE, events.stream[rows], of_track[track, 1])
    return _apart(device, process_numbers(trace.tracks)[track]), stream


def set_device_numbers(trace: Trace, roles: NDArray[np.uint8]) -> None:
    """Set the device and stream columns of ``trace`` where the events' ``args`` are insufficient.

    This is the case for events without a known category, and in files with several merged ranks.
    """
    rows = np.flatnonzero(roles == Role.DEVICE)
    device, stream = find_device_numbers(trace, rows)
    events = trace.events
    is_guessed = ~is_category_known(trace)[rows]
    is_moved = is_guessed | ((events.device[rows] != NONE) & (events.device[rows] != device))
    if is_moved.any():
        events.device = _changed(events.device, rows[is_moved], device[is_moved])
        events.stream = _changed(events.stream, rows[is_guessed], stream[is_guessed])


def _changed(
    column: NDArray[np.signedinteger[Any]], rows: NDArray[np.intp], values: NDArray[np.int64]
) -> NDArray[np.signedinteger[Any]]:
    whole = column.astype(np.int64)
    whole[rows] = values
    return narrowed(whole)


def _apart(device: NDArray[np.int64], process: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return device numbers that are unique across processes, because merged ranks repeat them.

    The first process with a number keeps the number; further processes get the next free numbers.
    """
    if len(np.unique(device)) == len(np.unique(process)) == 1:
        return device
    both, first, place = np.unique(
        np.stack([device, process]), axis=1, return_index=True, return_inverse=True
    )
    numbers = both[0].tolist()
    if len(set(numbers)) == len(numbers) or len(numbers) > _MAX_DEVICES:
        return device
    after: dict[int, int] = {}
    renumbered = np.zeros(len(numbers), np.int64)
    for at in np.argsort(first).tolist():
        renumbered[at] = _next_free(numbers[at], after)
    return renumbered[place.reshape(-1)]


def _next_free(number: int, after: dict[int, int]) -> int:
    passed = []
    while number in after:
        passed.append(number)
        number = after[number]
    # Paths are compressed, because a file may have a million processes.
    after |= dict.fromkeys([*passed, number], number + 1)
    return number
