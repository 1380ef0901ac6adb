"""Device and stream numbers of device work, from its ``args`` or its row."""

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

_MOST_DEVICES: Final = 1 << 12
"""Maximum number of device numbers that are made distinct: each costs a pass over all work."""


def find_device_numbers(
    trace: Trace, rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return device and stream of each of these rows, which are work of devices."""
    events, track = trace.events, trace.events.track[rows]
    tracks = find_device_tracks(trace.tracks)
    of_track = np.array([found[1:] for found in tracks] or [(NONE, NONE)], np.int64)
    device = np.where(events.device[rows] != NONE, events.device[rows], of_track[track, 0])
    stream = np.where(events.stream[rows] != NONE, events.stream[rows], of_track[track, 1])
    return _apart(device, process_numbers(trace.tracks)[track]), stream


def set_device_numbers(trace: Trace, roles: NDArray[np.uint8]) -> None:
    """Change the columns of ``trace`` if its rows contain more than the ``args``.

    This is the case for events without a category, and for ranks that were merged into one file.
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
    """Return device numbers that are unique to one process: merged ranks share theirs.

    The first process keeps the number; the next one that has it gets the lowest that is free.
    """
    if len(np.unique(device)) == len(np.unique(process)) == 1:
        return device
    both, first, place = np.unique(
        np.stack([device, process]), axis=1, return_index=True, return_inverse=True
    )
    numbers = both[0].tolist()
    if len(set(numbers)) == len(numbers) or len(numbers) > _MOST_DEVICES:
        return device
    after: dict[int, int] = {}
    renumbered = np.zeros(len(numbers), np.int64)
    for at in np.argsort(first).tolist():
        renumbered[at] = _take_free(numbers[at], after)
    return renumbered[place.reshape(-1)]


def _take_free(number: int, after: dict[int, int]) -> int:
    """Take the lowest free number from ``number`` upward; ``after`` leads past those taken."""
    passed = []
    while number in after:
        passed.append(number)
        number = after[number]
    # Each path is shortened, as a file may have a million processes.
    after |= dict.fromkeys([*passed, number], number + 1)
    return number
