"""Open aggregated sections, as the sections inside them see them.

An open aggregated section is current like any section. Sections inside it report their duration to
it when they end. It is no parent: for OpenTelemetry it is the context around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf.recorder.sections.section_context import (
    NOTHING,
    SECTION_KEY,
    SectionContext,
    context_above,
    extra_of,
)

if TYPE_CHECKING:
    from otel_mlperf.recorder.instruments.aggregated_sections import AggregatedName

LONGEST_NS: Final = 1 << 62
"""Longer than any call."""


class Place(NamedTuple):
    """What encloses the calls of a name that are added up together."""

    enclosing: str
    """Name of the section that directly encloses them."""
    phase: str
    section: int
    """Entry of the enclosing recorded section on the same track; 0: none."""
    path: tuple[str, ...]
    """Enclosing recorded sections, from below the step or run."""
    inside: tuple[str, ...]
    """Enclosing aggregated sections, below those."""
    of_step: bool
    beside: bool
    """Whether they, or anything around, are on another track than their enclosing section."""
    since_ns: int
    """Outside steps: when the first step of the latest phase started; 0: no phase had any."""


class AddUpCell:
    """One thread's cell for a name in a place."""

    __slots__ = ("least_ns", "most_ns", "of", "place", "word")

    def __init__(self, of: AggregatedName, place: Place, word: int) -> None:
        self.of, self.place = of, place
        self.word = word
        """Index of its first word; 0: no cell was left."""
        self.least_ns, self.most_ns = LONGEST_NS, 0


class OpenAggregate(SectionContext):
    """An open aggregated section, as sections inside it see it."""

    __slots__ = ("cell", "covered_ns", "of", "outer")
    adds_up = True
    of: AggregatedName
    cell: AddUpCell
    covered_ns: int
    """Time of sections inside it so far."""
    outer: OpenAggregate | None
    """The aggregated section that directly encloses it."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the context around; the section itself is no span."""
        return self if key == SECTION_KEY else self._around().get(key, default)

    def copy(self) -> dict[str, Any]:
        """Return the context around as a plain dictionary that contains this section."""
        return {**self._around().copy(), SECTION_KEY: self}

    def _around(self) -> Any:
        above = context_above(self)
        return NOTHING if above is None else above


def cut(call: OpenAggregate, below: SectionContext | None, t1: int) -> None:
    """Move an open section directly inside the call to what encloses the call."""
    if below is None or not below.at:
        return
    inside_ns = t1 - below.t0
    call.covered_ns += inside_ns
    if isinstance(below, OpenAggregate):
        below.outer = call.outer
    else:
        extra_of(below).within = call.outer
    if call.outer is not None:  # it receives the whole duration of both
        call.outer.covered_ns -= inside_ns


def is_recursion(call: OpenAggregate, duration_ns: int) -> bool:
    """Return whether a call ends inside another call of its cell, which contains its time.

    The outer call counts the inner call as covered; the inner call's own time is returned to it.
    """
    outer = call.outer
    while outer is not None and outer.cell is not call.cell:
        outer = outer.outer
    if outer is None:
        return False
    outer.covered_ns -= max(0, duration_ns - call.covered_ns)
    return True
