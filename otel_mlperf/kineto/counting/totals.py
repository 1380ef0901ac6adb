"""What do all events of one name, stream, section, step or phase come to?

How many, how long, and how are they spread. Quantiles are by nearest rank: the p-th is the smallest
duration in the group that at least p % of its events do not exceed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.intervals import inner_ns, nearest_rank, sums
from otel_mlperf.kineto.counting.attribution import main_sections
from otel_mlperf.kineto.counting.device_work import WorkKind
from otel_mlperf.kineto.linking.collectives import is_collective
from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.attribution import Attribution
    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Events, Trace

    Integers = NDArray[np.integer[Any]]

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


@dataclass(frozen=True, slots=True)
class Figures:
    """What the events of one group come to."""

    count: int
    total_ns: int
    self_ns: int
    min_ns: int
    max_ns: int
    p50_ns: int
    p95_ns: int


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """One item for each group that has an event, in the order of their numbers."""

    group: NDArray[np.int64]
    count: NDArray[np.int64]
    total_ns: NDArray[np.int64]
    self_ns: NDArray[np.int64]
    min_ns: NDArray[np.int64]
    max_ns: NDArray[np.int64]
    p50_ns: NDArray[np.int64]
    p95_ns: NDArray[np.int64]

    def each(self) -> Iterator[tuple[int, Figures]]:
        """The number and the figures of each group."""
        columns = (getattr(self, field.name).tolist() for field in fields(Figures))
        for group, *row in zip(self.group.tolist(), *columns, strict=True):
            yield group, Figures(*row)


def totals(group: Integers, duration_ns: Integers, self_ns: Integers) -> GroupTotals:
    """The totals of each group; all three have one item for each event."""
    # By duration within each group: least, most and quantiles are then places in it.
    order = np.lexsort((duration_ns, group))
    inside, duration = group[order].astype(np.int64), duration_ns[order].astype(np.int64)
    present, first, count = np.unique(inside, return_index=True, return_counts=True)
    dense = np.repeat(np.arange(len(present)), count)
    return GroupTotals(
        group=present,
        count=count.astype(np.int64),
        total_ns=sums(duration, dense, len(present)),
        self_ns=sums(self_ns[order], dense, len(present)),
        min_ns=duration[first],
        max_ns=duration[first + count - 1],
        p50_ns=duration[first + nearest_rank(count, 50)],
        p95_ns=duration[first + nearest_rank(count, 95)],
    )


def self_times(events: Events, around: NDArray[np.int32]) -> NDArray[np.int64]:
    """The duration of each event without what the events in it cover, on the same track.

    ``self = duration - |union of the children's intervals, cut to the parent's|``; ``around`` is
    the row of the event that contains each. Work of a device runs elsewhere than what launched it,
    and takes nothing from its time.
    """
    above = np.maximum(around, 0)
    is_inside = (around != NONE) & (events.track == events.track[above])
    end_ns = events.start_ns + np.maximum(events.duration_ns, 0)
    inside_ns = inner_ns(events.start_ns, end_ns, np.where(is_inside, around, NONE))
    return events.duration_ns - inside_ns


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


def window_totals(trace: Trace, links: Links, work: Work, where: Attribution) -> list[WindowTotal]:
    """The totals of every name, then of streams, sections, steps and phases."""
    own = self_times(trace.events, links.around)
    return [
        *_by_name(trace, links, work, where, own),
        *_by_stream(trace, work),
        *_by_place(trace, links, work, where, own),
    ]


def _by_name(
    trace: Trace, links: Links, work: Work, where: Attribution, own: NDArray[np.int64]
) -> list[WindowTotal]:
    events, names = trace.events, len(trace.names)
    group = events.category.astype(np.int64) * names + events.name
    of_names = totals(group, events.duration_ns, own)
    launched = _launched(trace, links, work, group, of_names.group)
    kinds = dict(_one_each(group[work.rows], work.kind))
    whats = {key: _WHAT.get(Role(role), OTHER) for key, role in _one_each(group, find_roles(trace))}
    main = main_sections(events.duration_ns, group, where)
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
        for key, figures in of_names.each()
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


def _by_stream(trace: Trace, work: Work) -> list[WindowTotal]:
    length = work.end_ns - work.start_ns
    of_streams = totals(work.stream, length, length)
    return [
        WindowTotal(
            what=STREAM,
            category=ON_DEVICE,
            name=f"device {work.streams[key][0]} stream {work.streams[key][1]}",
            device=work.streams[key][0],
            stream=work.streams[key][1],
            figures=figures,
        )
        for key, figures in of_streams.each()
    ]


def _by_place(
    trace: Trace, links: Links, work: Work, where: Attribution, own: NDArray[np.int64]
) -> list[WindowTotal]:
    operators = find_roles(trace) == Role.OPERATOR
    inside = Forest(links.around).nearest(operators) != NONE
    outermost = np.flatnonzero(operators & ~inside)
    duration = trace.events.duration_ns
    of_places: list[WindowTotal] = []
    for what, place, names in (
        (SECTION, where.section, where.sections),
        (STEP, where.step, where.steps),
        (PHASE, where.phase, where.phases),
    ):
        for category, rows in ((ON_DEVICE, work.rows), (ON_HOST, outermost)):
            mine = rows[place[rows] != NONE]
            sums_of = totals(place[mine], duration[mine], own[mine])
            of_places += [
                WindowTotal(what=what, category=category, name=names[key], figures=figures)
                for key, figures in sums_of.each()
            ]
    return of_places
