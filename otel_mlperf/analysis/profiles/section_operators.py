"""Operators and kernels under each section of a profiled step, summed by name.

An operator's time is its self time, as in the totals of a window: without operators, annotations
and sections that are nested in the operator on the same thread. So the operators on a section's
thread and the time outside all operators sum to the section's self time. Times of kernels are
device times, summed over streams, because kernels run concurrently to the host. Python frames are
skipped. Annotations are skipped unless an operator encloses them, because they may contain
sections.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from otel_mlperf import names
from otel_mlperf.intervals import inner_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.store.table_reader import Store

Place = Literal["here", "beside", "device"]
_ANNOTATION: Final = "user_annotation"
_SKIPPED: Final = frozenset({_ANNOTATION, "gpu_user_annotation", "python_function"})
_PLACES: Final[tuple[Place, ...]] = ("here", "beside", "device")
_Row = dict[str, Any]


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """All operators, or all kernels, of one name directly under one section."""

    name: str
    count: int
    self_ns: int
    """Time without nested operators and sections of the same thread; on a device: whole
    duration."""
    place: Place
    """Location: ``here`` (the section's thread), ``beside`` (another thread) or ``device``."""


def read_operators(store: Store, step: _Row, sections: list[_Row]) -> dict[str, list[Operator]]:
    """Return the operators of each section, by the section's span id.

    Operators on the section's thread come first; within a place, the operator with most time is
    first.

    Args:
        store: tables of the run.
        step: row with the trace id, rank and restart of the step.
        sections: rows of the step's sampled spans that are not events. Operators that no section
            contains are attributed to the first of ``sections``.
    """
    events = store.records(
        "SELECT span_id, parent_id, name, category, track, thread_id, start_ns, end_ns, "
        "attributes FROM spans WHERE trace_id = $trace AND rank = $rank "
        "AND restart = $restart AND kind = 'event' ORDER BY start_ns, end_ns DESC",
        trace=step["trace_id"],
        rank=step["rank"],
        restart=step["restart"],
    )
    return roll_up_operators(events, sections)


def roll_up_operators(events: list[_Row], sections: list[_Row]) -> dict[str, list[Operator]]:
    """Return the operators of each section, by its span id; ``events`` must be sorted by start."""
    return _rolled_up(_Events(events, sections)) if events and sections else {}


class _Events:
    def __init__(self, events: list[_Row], sections: list[_Row]) -> None:
        self._by_id = {row["span_id"]: row for row in events}
        self._activity = {row["span_id"]: _activity(row) for row in events}
        self.sections = {row["span_id"]: row for row in sections}
        self._first: str = sections[0]["span_id"]
        self.counted = [row for row in events if self._counts(row)]
        self._is_counted = {row["span_id"] for row in self.counted}
        self.section = {row["span_id"]: self._section(row) for row in self.counted}
        self.own = {row["span_id"]: row["end_ns"] - row["start_ns"] for row in self.counted}
        self._subtract_nested(sections)

    def _counts(self, row: _Row) -> bool:
        """Return whether to list an event: not Python frames and device annotations.

        A host annotation is listed only if an operator or a call encloses it.
        """
        activity = self._activity[row["span_id"]]
        if activity not in _SKIPPED:
            return True
        above = self._by_id.get(row["parent_id"]) if activity == _ANNOTATION else None
        while above is not None and self._activity[above["span_id"]] in _SKIPPED:
            above = self._by_id.get(above["parent_id"])
        return above is not None

    def _counted_ancestor(self, row: _Row) -> _Row | None:
        above = self._by_id.get(row["parent_id"])
        while above is not None and above["span_id"] not in self._is_counted:
            above = self._by_id.get(above["parent_id"])
        return above

    def _section(self, row: _Row) -> str:
        span: str = row["parent_id"]
        while span in self._by_id:
            span = self._by_id[span]["parent_id"]
        # If its section was not sampled, use the first one: the step, which contains all events.
        return span if span in self.sections else self._first

    def _subtract_nested(self, sections: list[_Row]) -> None:
        pieces = [(row, self._counted_ancestor(row)) for row in self.counted]
        directly: dict[str, list[_Row]] = defaultdict(list)
        for row in self.counted:
            directly[self.section[row["span_id"]]].append(row)
        # A section nested in an operator is subtracted from that operator's own time, too.
        pieces += [(row, _around(row, directly.get(row["parent_id"], []))) for row in sections]
        place = {row["span_id"]: at for at, (row, _) in enumerate(pieces)}
        around = [
            place[outer["span_id"]] if outer is not None and _is_within(row, outer) else -1
            for row, outer in pieces
        ]
        inside_ns = inner_ns(
            np.array([row["start_ns"] for row, _ in pieces]),
            np.array([row["end_ns"] for row, _ in pieces]),
            np.array(around),
        )
        for (row, _), inner in zip(pieces, inside_ns.tolist(), strict=True):
            if row["span_id"] in self.own:
                self.own[row["span_id"]] -= inner

    def place(self, row: _Row) -> Place:
        if _is_device(row):
            return "device"
        section = self.sections[self.section[row["span_id"]]]
        return "here" if row["thread_id"] == section["thread_id"] else "beside"


def _is_within(row: _Row, outer: _Row) -> bool:
    is_on_host = not (_is_device(outer) or _is_device(row))
    return bool(is_on_host and outer["thread_id"] == row["thread_id"])


def _around(inner: _Row, operators: list[_Row]) -> _Row | None:
    """Return the shortest operator that encloses the section ``inner`` on its thread, or None."""
    around = [
        row
        for row in operators
        if row["start_ns"] <= inner["start_ns"]
        and row["end_ns"] >= inner["end_ns"]
        and row["thread_id"] == inner["thread_id"]
    ]
    return min(around, key=lambda row: row["end_ns"] - row["start_ns"], default=None)


def _rolled_up(events: _Events) -> dict[str, list[Operator]]:
    grouped: dict[tuple[str, Place, str], list[int]] = defaultdict(list)
    for row in events.counted:
        span = row["span_id"]
        # Asynchronous children may outlive their parent, so their sum may exceed its duration.
        own = max(0, events.own[span])
        grouped[events.section[span], events.place(row), row["name"]].append(own)
    by_section: dict[str, list[Operator]] = defaultdict(list)
    for (section, place, name), times in grouped.items():
        by_section[section].append(
            Operator(name=name, count=len(times), self_ns=sum(times), place=place)
        )
    return {section: _ordered(of) for section, of in by_section.items()}


def add_up(lists: Iterable[list[Operator]]) -> list[Operator]:
    """Merge the lists of several sections: operators of the same name and place are summed."""
    grouped: dict[tuple[str, Place], list[Operator]] = defaultdict(list)
    for operator in (operator for of in lists for operator in of):
        grouped[operator.name, operator.place].append(operator)
    return _ordered(
        Operator(
            name=name,
            count=sum(operator.count for operator in of),
            self_ns=sum(operator.self_ns for operator in of),
            place=place,
        )
        for (name, place), of in grouped.items()
    )


def _ordered(operators: Iterable[Operator]) -> list[Operator]:
    return sorted(
        operators,
        key=lambda operator: (_PLACES.index(operator.place), -operator.self_ns, operator.name),
    )


def _is_device(row: _Row) -> bool:
    return bool(row["category"] == names.KERNEL)


def _activity(row: _Row) -> str | None:
    activity: str | None = json.loads(row["attributes"] or "{}").get(names.PROFILER_ACTIVITY)
    return activity
