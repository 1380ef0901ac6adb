"""Which recorded section is above each root, and which annotations are one once more?

The innermost of what was open is above an event, be it recorded or in the trace: an operator in a
section in an annotation is the section's. Where a section lies inside an annotation or a frame of
Python, these stand beside it and not above: what was recorded is sent long before.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.trace_events import Trace

_TWIN_NS: Final = 100_000
"""How far the ends of an annotation may lie from its section's: to open and to close one takes
some 10 µs while the profiler runs, with Python stacks several times that."""


def sections_of_tracks(trace: Trace, threads: NDArray[np.int64]) -> dict[int, NDArray[np.intp]]:
    """Track to the indices of the sections that ran on it, by native thread id."""
    of_thread = {
        str(thread): np.flatnonzero(threads == thread)
        for thread in np.unique(threads).tolist()
        if thread != NONE
    }
    return {
        track: of_thread[one.tid] for track, one in enumerate(trace.tracks) if one.tid in of_thread
    }


def find_twins(
    trace: Trace,
    sections: Sections,
    of_track: dict[int, NDArray[np.intp]],
    annotations: NDArray[np.intp],
    steps: NDArray[np.intp],
) -> NDArray[np.int32]:
    """For each annotation that is a section once more that section's index; NONE for all others.

    It is on the section's thread and has its name, and both ends; each section has one at most. An
    annotation of a step is the recorded step with which it shares more than half of the time of
    either.
    """
    found = np.full(len(trace.events), NONE, np.int32)
    for track, there in of_track.items():
        named: dict[str, list[int]] = defaultdict(list)
        for index in there.tolist():
            named[sections.name[index]].append(index)
        taken: set[int] = set()
        for row in annotations[trace.events.track[annotations] == track].tolist():
            twin = _nearest(trace, row, sections, named[trace.names[trace.events.name[row]]])
            if twin not in (NONE, *taken):
                found[row] = twin
                taken.add(twin)
        recorded = there[sections.is_step[there]].tolist()
        for row in steps[trace.events.track[steps] == track].tolist():
            found[row] = _same_time(trace, row, sections, recorded)
    return found


def _nearest(trace: Trace, row: int, sections: Sections, there: list[int]) -> int:
    """The section, of those that have its name, that begins and ends with an annotation."""
    start = int(trace.events.start_ns[row])
    end = start + int(trace.events.duration_ns[row])
    at = bisect.bisect(there, start, key=lambda index: int(sections.start_ns[index]))
    near = [
        index
        for index in there[max(at - 1, 0) : at + 1]
        if abs(int(sections.start_ns[index]) - start) <= _TWIN_NS
        and abs(int(sections.end_ns[index]) - end) <= _TWIN_NS
        and _shares_half(start, end, sections, index)
    ]
    return min(near, key=lambda index: abs(int(sections.start_ns[index]) - start), default=NONE)


def _same_time(trace: Trace, row: int, sections: Sections, there: list[int]) -> int:
    start = int(trace.events.start_ns[row])
    end = start + int(trace.events.duration_ns[row])
    return next((one for one in there if _shares_half(start, end, sections, one)), NONE)


def _shares_half(start: int, end: int, sections: Sections, index: int) -> bool:
    begin, stop = int(sections.start_ns[index]), int(sections.end_ns[index])
    return 2 * (min(end, stop) - max(start, begin)) > max(end - start, stop - begin)


def is_of_section(
    parent: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    inner: NDArray[np.int32],
    sections: Sections,
) -> NDArray[np.bool_]:
    """Which events hang under the section that they are in, not under the event around them.

    Those without an event around them, and those whose section began inside of it.

    Args:
        parent: of each event the one around it.
        start_ns: of each event.
        inner: of each event the innermost section in which it begins.
        sections: what was recorded.
    """
    begin = np.append(sections.start_ns, 0)[inner]
    is_further_in = (inner != inner[parent]) & (begin >= start_ns[parent])
    found: NDArray[np.bool_] = (inner != NONE) & ((parent == NONE) | is_further_in)
    return found
