"""Numbers of device and stream of a device's work, from its ``args`` or its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from otel_mlperf.kineto.linking.device_tracks import find_device_tracks
from otel_mlperf.kineto.linking.linked_events import Role, is_category_known
from otel_mlperf.kineto.reading.value_columns import narrowed
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace


def find_device_numbers(
    trace: Trace, rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return device and stream of each of these rows, which are work of devices."""
    events, track = trace.events, trace.events.track[rows]
    tracks = find_device_tracks(trace.tracks)
    of_track = np.array([found[1:] for found in tracks] or [(NONE, NONE)], np.int64)
    device = np.where(events.device[rows] != NONE, events.device[rows], of_track[track, 0])
    stream = np.where(events.stream[rows] != NONE, events.stream[rows], of_track[track, 1])
    process = np.array([found.pid for found in trace.tracks] or [""])[track]
    return _apart(device, process), stream


def set_device_numbers(trace: Trace, roles: NDArray[np.uint8]) -> None:
    """Change the columns of ``trace`` where its rows say more than the ``args``.

    That is so of events without a category, and of ranks that were merged into one file.
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


def _apart(device: NDArray[np.int64], process: NDArray[np.str_]) -> NDArray[np.int64]:
    """Device numbers, each of one process: ranks that were merged into a file share theirs.

    The first process keeps the number; the next one that has it gets the lowest that is free.
    """
    both, first, place = np.unique(
        np.rec.fromarrays([device, process]), return_index=True, return_inverse=True
    )
    numbers = [int(number) for number, _ in both.tolist()]
    if len(set(numbers)) == len(numbers):
        return device
    taken: set[int] = set()
    renumbered = np.zeros(len(both), np.int64)
    for at in np.argsort(first).tolist():
        free = numbers[at]
        while free in taken:
            free += 1
        taken.add(free)
        renumbered[at] = free
    return renumbered[place.reshape(-1)]
