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
"""No call takes so long."""


class Place(NamedTuple):
    """What is around the calls of a name that add up together."""

    enclosing: str
    """Name of the section that they are directly in."""
    phase: str
    section: int
    """Entry of the recorded section around, on the same track; 0: there is none."""
    path: tuple[str, ...]
    """Recorded sections around, from below the step or run."""
    inside: tuple[str, ...]
    """Aggregated sections around, below those."""
    of_step: bool
    beside: bool
    """They, or anything around, on another track than what is around that."""
    since_ns: int
    """Outside steps: when the latest phase began to have steps; 0: none had any."""


class AddUpCell:
    """One thread's cell for a name in a place."""

    __slots__ = ("least_ns", "most_ns", "of", "place", "word")

    def __init__(self, of: AggregatedName, place: Place, word: int) -> None:
        self.of, self.place = of, place
        self.word = word
        """Index of its first word; 0: there was none left."""
        self.least_ns, self.most_ns = LONGEST_NS, 0


class OpenAggregate(SectionContext):
    """An open aggregated section, as those see it that are opened inside."""

    __slots__ = ("cell", "covered_ns", "of", "outer")
    adds_up = True
    of: AggregatedName
    cell: AddUpCell
    covered_ns: int
    """What others inside took of it so far."""
    outer: OpenAggregate | None
    """The aggregated section that it is directly in."""

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the context around; it is no span itself."""
        return self if key == SECTION_KEY else self._around().get(key, default)

    def copy(self) -> dict[str, Any]:
        """The context around as a plain dictionary, which remembers this section."""
        return {**self._around().copy(), SECTION_KEY: self}

    def _around(self) -> Any:
        above = context_above(self)
        return NOTHING if above is None else above


def cut(call: OpenAggregate, below: SectionContext | None, t1: int) -> None:
    """What is directly inside and still open goes on in what is around the call."""
    if below is None or not below.at:
        return
    inside_ns = t1 - below.t0
    call.covered_ns += inside_ns
    if isinstance(below, OpenAggregate):
        below.outer = call.outer
    else:
        extra_of(below).within = call.outer
    if call.outer is not None:  # which gets the whole of both
        call.outer.covered_ns -= inside_ns


def is_recursion(call: OpenAggregate, duration_ns: int) -> bool:
    """Whether a call ends inside one that adds up in the same cell: its time is in there already.

    What the outer one takes for covered, it gets back of that what was the inner one's own.
    """
    outer = call.outer
    while outer is not None and outer.cell is not call.cell:
        outer = outer.outer
    if outer is None:
        return False
    outer.covered_ns -= max(0, duration_ns - call.covered_ns)
    return True
