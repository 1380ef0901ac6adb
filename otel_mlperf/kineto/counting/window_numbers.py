"""What happened in a profiler window, as exact numbers?

Whole nanoseconds and bytes from the events themselves, before any budget decides which of them
become spans. Per name, stream, section, step and phase: ``count``, ``total`` (sum of durations),
``self`` (see ``totals.self_times``), ``min``, ``max`` and the quantiles of ``totals``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.intervals import sums
from otel_mlperf.kineto.counting.allocator_memory import follow_memory
from otel_mlperf.kineto.counting.attribution import find_belonging
from otel_mlperf.kineto.counting.device_work import WorkKind, count_copies, find_work
from otel_mlperf.kineto.counting.gaps import find_gaps
from otel_mlperf.kineto.counting.streams import measure_devices, measure_streams, window_of
from otel_mlperf.kineto.counting.totals import self_times, totals
from otel_mlperf.kineto.linking.collectives import is_collective
from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.roles import Role, find_roles
from otel_mlperf.kineto.linking.sections import no_sections
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.journal.window import Window
    from otel_mlperf.kineto.counting.allocator_memory import Memory
    from otel_mlperf.kineto.counting.attribution import Attribution
    from otel_mlperf.kineto.counting.device_work import Copies, Work
    from otel_mlperf.kineto.counting.gaps import Gap
    from otel_mlperf.kineto.counting.streams import Stream
    from otel_mlperf.kineto.counting.totals import Figures
    from otel_mlperf.kineto.linking.links import Links
    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.trace_events import Trace

KERNEL: Final = "kernel"
"""Work of a device: kernels, copies and memsets."""
OPERATOR: Final = "operator"
ANNOTATION: Final = "annotation"
CALL: Final = "call"
PYTHON_FUNCTION: Final = "python"
OTHER: Final = "other"
STREAM: Final = "stream"
SECTION: Final = "section"
STEP: Final = "step"
PHASE: Final = "phase"

ON_DEVICE: Final = "device"
"""Category of what is counted over device work."""
ON_HOST: Final = "host"
"""Category of what is counted over the outermost operators of the host."""


_WHAT: Final = {
    Role.OPERATOR: OPERATOR,
    Role.ANNOTATION: ANNOTATION,
    Role.PYTHON: PYTHON_FUNCTION,
    Role.CALL: CALL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTotal:
    """What all events of one name, stream, section, step or phase come to."""

    what: str
    category: str
    """As the trace writes it; of stream, section, step and phase: device or host."""
    name: str
    device: int | None = None
    stream: int | None = None
    kind: str = ""
    """Of device work: compute, communication or copy; communication of a collective's annotation,
    too."""
    section: str = ""
    """Of a name: the section that most of its time comes from; empty if none is known."""
    section_ns: int = 0
    device_ns: int = 0
    """Of an operator: device work launched by it, not by operators inside it."""
    figures: Figures


@dataclass(frozen=True, slots=True)
class WindowNumbers:
    """Everything that is counted in one window."""

    start_ns: int
    end_ns: int
    categories: dict[str, tuple[int, int]]
    """Events and the sum of their durations, by category."""
    totals: list[WindowTotal]
    devices: list[Stream]
    streams: list[Stream]
    copies: list[Copies]
    gaps: list[Gap]
    memory: list[Memory]
    steps: list[str]


def count(
    trace: Trace,
    links: Links,
    sections: Sections | None = None,
    window: Window | None = None,
) -> WindowNumbers:
    """Counts a window; with its run's sections and its description, by their names."""
    work = find_work(trace)
    where = find_belonging(trace, links, sections or no_sections(), window)
    own = self_times(trace.events, links.around)
    start, end = window_of(trace, work)
    return WindowNumbers(
        start_ns=start,
        end_ns=end,
        categories=_categories(trace),
        totals=[
            *_by_name(trace, links, work, where, own),
            *_by_stream(trace, work),
            *_by_place(trace, links, work, where, own),
        ],
        devices=measure_devices(trace, work, links.launch),
        streams=measure_streams(trace, work, links.launch),
        copies=count_copies(trace, work),
        gaps=find_gaps(trace, work, links),
        memory=follow_memory(trace),
        steps=where.steps,
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


def _by_name(
    trace: Trace, links: Links, work: Work, where: Attribution, own: NDArray[np.int64]
) -> list[WindowTotal]:
    events, names = trace.events, len(trace.names)
    group = events.category.astype(np.int64) * names + events.name
    found = totals(group, events.duration_ns, own)
    launched = _launched(trace, links, work, group, found.group)
    kinds = dict(_one_each(group[work.rows], work.kind))
    whats = {key: _WHAT.get(Role(role), OTHER) for key, role in _one_each(group, find_roles(trace))}
    main = _main_sections(events.duration_ns, group, where)
    return [
        WindowTotal(
            what=KERNEL if key in kinds else whats[key],
            category=trace.categories[key // names],
            name=trace.names[key % names],
            kind=_kind(kinds.get(key), whats[key], trace.names[key % names]),
            section=where.sections[main[key][0]] if key in main else "",
            section_ns=main[key][1] if key in main else 0,
            device_ns=launched[key],
            figures=figures,
        )
        for key, figures in found.each()
    ]


def _kind(of_work: int | None, what: str, name: str) -> str:
    if of_work is not None:
        return WorkKind(of_work).name.lower()
    is_communication = what == ANNOTATION and is_collective(name)
    return WorkKind.COMMUNICATION.name.lower() if is_communication else ""


def _one_each(group: NDArray[np.int64], values: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Each group with the value of its first event."""
    groups, first = np.unique(group, return_index=True)
    return zip(groups.tolist(), values[first].tolist(), strict=True)


def _launched(
    trace: Trace,
    links: Links,
    work: Work,
    group: NDArray[np.int64],
    groups: NDArray[np.int64],
) -> dict[int, int]:
    """The device time that the operators of each group launched themselves."""
    operator = Forest(links.parent).nearest(find_roles(trace) == Role.OPERATOR)[work.rows]
    known = operator != NONE
    place = np.searchsorted(groups, group[operator[known]])
    spent = sums(work.end_ns[known] - work.start_ns[known], place, len(groups))
    return dict(zip(groups.tolist(), spent.tolist(), strict=True))


def _main_sections(
    duration_ns: NDArray[np.int64], group: NDArray[np.int64], where: Attribution
) -> dict[int, tuple[int, int]]:
    """For each group the section with most of its time, and how much that is."""
    rows = np.flatnonzero(where.section != NONE)
    pairs, of_pair = np.unique(
        np.stack([group[rows], where.section[rows]]), axis=1, return_inverse=True
    )
    spent = sums(duration_ns[rows], of_pair.reshape(-1), pairs.shape[1])
    # The last of a key counts: the longest, and of equal ones the first by name.
    order = np.lexsort((-pairs[1], spent))
    keys, named, times = pairs[0][order], pairs[1][order], spent[order]
    found = zip(named.tolist(), times.tolist(), strict=True)
    return dict(zip(keys.tolist(), found, strict=True))


def _by_stream(trace: Trace, work: Work) -> list[WindowTotal]:
    length = work.end_ns - work.start_ns
    found = totals(work.stream, length, length)
    return [
        WindowTotal(
            what=STREAM,
            category=ON_DEVICE,
            name=f"device {work.streams[key][0]} stream {work.streams[key][1]}",
            device=work.streams[key][0],
            stream=work.streams[key][1],
            figures=figures,
        )
        for key, figures in found.each()
    ]


def _by_place(
    trace: Trace, links: Links, work: Work, where: Attribution, own: NDArray[np.int64]
) -> list[WindowTotal]:
    operators = find_roles(trace) == Role.OPERATOR
    inside = Forest(links.around).nearest(operators) != NONE
    outermost = np.flatnonzero(operators & ~inside)
    duration = trace.events.duration_ns
    found: list[WindowTotal] = []
    for what, place, names in (
        (SECTION, where.section, where.sections),
        (STEP, where.step, where.steps),
        (PHASE, where.phase, where.phases),
    ):
        for category, rows in ((ON_DEVICE, work.rows), (ON_HOST, outermost)):
            mine = rows[place[rows] != NONE]
            sums_of = totals(place[mine], duration[mine], own[mine])
            found += [
                WindowTotal(what=what, category=category, name=names[key], figures=figures)
                for key, figures in sums_of.each()
            ]
    return found
