"""Open aggregated sections, and the places by which they are aggregated.

An open aggregated section is current like any section, and sections inside add their duration to
the covered time when they end. An aggregated section is never a parent: OpenTelemetry sees the
context around it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from otel_mlperf.recorder.sections.section_context import (
    NOTHING,
    SECTION_KEY,
    SectionContext,
    context_above,
    extra_of,
)

LONGEST_NS: Final = 1 << 62
"""Initial value of a minimum, longer than any call."""


class AggregatedName:
    """Name and category of aggregated calls."""

    __slots__ = ("category", "name")

    def __init__(self, name: str, category: str) -> None:
        self.name, self.category = name, category


class Place(NamedTuple):
    """Surroundings of calls: calls with the same name and place are aggregated together."""

    enclosing: str
    """Name of the directly enclosing section."""
    phase: str
    section: int
    """Entry of the enclosing recorded section on the same track; 0: none on that track."""
    path: tuple[str, ...]
    """Names of the enclosing recorded sections below the step or run, the outermost first."""
    inside: tuple[str, ...]
    """Names of the enclosing aggregated sections inside ``path``, the outermost first."""
    of_step: bool
    beside: bool
    """Whether the calls are on another track than the section that encloses them, or a section
    around them is on another track than its own parent.
    """
    since_ns: int
    """Start of the first step of the latest new phase; 0 before any step and for calls in steps."""


class AddUpCell:
    """One thread's cell for the calls of a name in a place."""

    __slots__ = ("least_ns", "most_ns", "of", "place", "word")

    def __init__(self, of: AggregatedName, place: Place, word: int) -> None:
        self.of, self.place = of, place
        self.word = word
        """Index of the cell's first word; 0: the journal has no free cell."""
        self.least_ns, self.most_ns = LONGEST_NS, 0


class OpenAggregate(SectionContext):
    """Open aggregated section."""

    __slots__ = ("cell", "covered_ns", "of", "outer")
    adds_up = True
    of: AggregatedName
    cell: AddUpCell
    covered_ns: int
    """Time in ns of the ended sections inside."""
    outer: OpenAggregate | None
    """The aggregated section that directly encloses this one."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the enclosing context, because an aggregated section is no span."""
        return self if key == SECTION_KEY else self._around().get(key, default)

    def copy(self) -> dict[str, Any]:
        """Return the enclosing context and this section as a plain dictionary."""
        return {**self._around().copy(), SECTION_KEY: self}

    def _around(self) -> Any:
        above = context_above(self)
        return NOTHING if above is None else above


def cut(call: OpenAggregate, below: SectionContext | None, t1: int) -> None:
    """Move ``below`` from the directly enclosing ``call``, which ends at ``t1``, to the outer call.

    Do nothing if ``below`` is None or has ended.
    """
    if below is None or not below.at:
        return
    inside_ns = t1 - below.t0
    call.covered_ns += inside_ns
    if isinstance(below, OpenAggregate):
        below.outer = call.outer
    else:
        extra_of(below).within = call.outer
    if call.outer is not None:  # both add their whole duration to it: subtract the overlap
        call.outer.covered_ns -= inside_ns


def is_recursion(call: OpenAggregate, duration_ns: int) -> bool:
    """Return whether a call is recursive, i.e. ends inside another call of its cell.

    If so, the call's self time is subtracted from the covered time of that outer call, because the
    cell contains both calls.
    """
    outer = call.outer
    while outer is not None and outer.cell is not call.cell:
        outer = outer.outer
    if outer is None:
        return False
    outer.covered_ns -= max(0, duration_ns - call.covered_ns)
    return True
