"""Timeline rows whose events are neither known device work nor known host work.

If a trace has such rows and no known device work, the program may still have used a device.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.linking.device_tracks import TrackKind, find_device_tracks, is_of_list
from otel_mlperf.kineto.linking.linked_events import Role, find_roles, is_category_known
from otel_mlperf.store.window_facts import UnknownRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace

_MOST_PROCESSES: Final = 8


def find_unknown_rows(trace: Trace) -> list[UnknownRows]:
    """Count the events on unknown rows, by process, most first.

    These are rows of a device in an unknown form, and all rows of a file without any known
    feature: no category, no row of a device, no list of operators.
    """
    roles, tracks = find_roles(trace), find_device_tracks(trace.tracks)
    kinds = np.array([track.kind for track in tracks] or [TrackKind.HOST], np.uint8)
    kind = kinds[trace.events.track]
    is_guessed = ~is_category_known(trace)
    unknown = is_guessed & (roles == Role.HOST) & (kind == TrackKind.UNKNOWN)
    if not unknown.any() and not (roles == Role.DEVICE).any():
        # The list of autograd draws arrows to kernels that it places under operators.
        is_mixed = bool(len(trace.flows)) and any(map(is_of_list, trace.tracks))
        is_foreign = bool((is_guessed & (roles == Role.HOST)).all())
        return _count(trace, np.full(len(roles), is_mixed or is_foreign), is_device=is_mixed)
    return _count(trace, unknown, is_device=True)


def _count(trace: Trace, wanted: NDArray[np.bool_], *, is_device: bool) -> list[UnknownRows]:
    of_tracks = np.bincount(trace.events.track[wanted], minlength=len(trace.tracks)).tolist()
    events: Counter[str] = Counter()
    for track, count in zip(trace.tracks, of_tracks, strict=True):
        events[track.process or track.labels or track.pid] += count
    most = events.most_common(_MOST_PROCESSES)
    return [UnknownRows(process=name, events=n, is_device=is_device) for name, n in most if n]
