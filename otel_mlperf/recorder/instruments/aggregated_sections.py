"""Aggregated sections, for which a call writes no row: up to 100,000 calls a second.

A cell for each name and place accumulates count, sum, minimum and maximum: see
``aggregated_places``. An open aggregated section is current like any section. Sections inside,
aggregated or not, add their duration to the covered time, which the self time excludes. An
aggregated section is never a parent: sections inside are children of the section around it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.journal.layout import MAX_ENTRIES
from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, try_again, warn_once
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.name_registry import TOO_MANY_NAMES, implied_category
from otel_mlperf.recorder.core.tracks import find_running_loop
from otel_mlperf.recorder.instruments.aggregated_places import AggregatedPlaces
from otel_mlperf.recorder.instruments.open_aggregate import (
    AggregatedName,
    OpenAggregate,
    is_recursion,
)
from otel_mlperf.recorder.sections.section import reset_and_surface
from otel_mlperf.recorder.sections.section_context import CURRENT, context_above

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.instruments.aggregated_places import ThreadMemo
    from otel_mlperf.recorder.instruments.cells import Cells
    from otel_mlperf.recorder.sections.parents import Parents
    from otel_mlperf.recorder.sections.section import Section


class AggregatedSection(OpenAggregate):
    """Context manager of one call of an aggregated section."""

    __slots__ = ()
    decorate: ClassVar[Callable[..., Callable[[Any], Any]]]
    """Returns a decorator for a name and category; set by ``span``, a layer above."""
    of: AggregatedName

    def __enter__(self) -> AggregatedSection:
        raise NotImplementedError  # each journal's class has its own

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        raise NotImplementedError

    def __call__(self, function: Any) -> Any:
        """Decorate a function, for ``@span("name", aggregate=True)``."""
        return self.decorate(self.of.name, self.of.category, aggregate=True)(function)

    def set(self, /, **attributes: Any) -> None:
        """Do nothing, because an aggregated section has no attributes."""


class AggregatedSections:
    """Aggregated sections of one recording."""

    def __init__(
        self, recording: Recording, parents: Parents, cells: Cells, plain: type[Section]
    ) -> None:
        self.known: dict[Any, AggregatedName] = {}
        """Known names, by name or by name and category, for the fast path."""
        self.places = AggregatedPlaces(recording, parents, cells)
        self.new, retire, self._watch_asyncio = _bind(recording, self.places, plain)
        recording.at_retire.append(retire)
        recording.registry.at_new_name.append(self._watch_asyncio)

    def make(self, name: Any, category: str | None) -> AggregatedSection:
        """Return a new section to enter; if ``category`` is None, the name implies the category."""
        key = name if category is None else (name, category)
        section = self.new()
        section.of = self.known.get(key) or self._first_time(key, name, category)
        return section

    def _first_time(self, key: Any, name: Any, category: str | None) -> AggregatedName:
        self._watch_asyncio()  # asyncio may have been imported in the meantime
        if len(self.known) >= MAX_ENTRIES:
            warn_once(TOO_MANY_NAMES, MAX_ENTRIES)
            key = name = names.OTHER
        text = safe_name_text(name)
        kind = safe_name_text(category) if category else implied_category(text)
        return self.known.setdefault(key, AggregatedName(text, kind))


def _bind(  # noqa: C901 - closures of one scope, by design
    recording: Recording, places: AggregatedPlaces, plain: type[Section]
) -> tuple[type[AggregatedSection], Callable[[], None], Callable[[], None]]:
    """Return a section class for the recording's journal, and two functions that change the class.

    The first is called at the end of the recording, the second when asyncio might have been
    imported. ``sections.section.bind`` explains the order of operations in the class's methods.
    """
    words = recording.journal.words
    local: ThreadMemo = places.local
    find, settle = places.find, places.settle
    get_current, set_current, reset_current = CURRENT.get, CURRENT.set, CURRENT.reset
    clock = time.monotonic_ns
    running_loop = find_running_loop()  # None while asyncio is not imported

    class BoundAggregate(AggregatedSection):
        __slots__ = ()

        def __enter__(self) -> AggregatedSection:
            above = None
            try:
                above = get_current()
                kind = above.__class__
                self.covered_ns = 0
                # Common case: inside an open section of this recording, in a place that this thread
                # has cached.
                outer = above if kind is BoundAggregate else None
                if (
                    (outer is not None or kind is plain)
                    and above.at
                    and (running_loop is None or running_loop() is None)
                    and (cell := local.memo.get((self.of, above.sid))) is not None
                ):
                    self.outer = outer
                    self.track = above.track
                else:
                    cell = find(self, above)
                self.cell = cell
                self.sid = self.at = cell.word
                if cell.word:  # otherwise no cell is free and nothing is recorded
                    self.t0 = clock()
                    self.token = set_current(self)
            except BaseException as problem:  # noqa: BLE001 - the callee decides
                _rescue(problem, _restore, self, above)
            return self

        @at_once
        def __exit__(  # noqa: C901 - no calls
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None:
            try:
                t1 = clock()
                if get_current() is self:
                    reset_current(self.token)
                elif not settle(self, t1):
                    return
                duration, cell, outer = t1 - self.t0, self.cell, self.outer
                word = cell.word
                # A cell belongs to one thread, and the updates below make no call, after which a
                # signal handler could run: the duration is added exactly once.
                if outer is None or not is_recursion(self, duration):
                    words[word + 2] += duration
                    if self.covered_ns > 0:
                        covered = self.covered_ns
                        words[word + 5] += covered if covered < duration else duration
                if duration < cell.least_ns:
                    words[word + 3] = cell.least_ns = duration
                if duration > cell.most_ns:
                    words[word + 4] = cell.most_ns = duration
                words[word + 1] += 1
                if outer is not None:
                    outer.covered_ns += duration
                self.at = 0
            except BaseException as problem:  # noqa: BLE001 - the callee decides
                _rescue(problem, _finish, self, problem)

    BoundAggregate.recording = recording

    def retire() -> None:
        nonlocal words, reset_current
        # Scratch memory has the journal's size: sections that are still open write to its cells.
        words = memoryview(recording.journal.scratch).cast("Q")
        reset_current = reset_and_surface

    def watch_asyncio() -> None:
        nonlocal running_loop
        running_loop = running_loop or find_running_loop()

    return BoundAggregate, retire, watch_asyncio


@at_once
def _rescue(problem: BaseException, do: Callable[..., None], *arguments: Any) -> None:
    """Complete or undo a failed ``__enter__`` or ``__exit__`` by ``do``, an idempotent function."""
    try:
        do(*arguments)
    except BaseException as another:  # noqa: BLE001 - the callee decides
        try_again(do, *arguments)
        internal_error(another)
    internal_error(problem)  # raises an exception of the program


def _finish(section: AggregatedSection, problem: BaseException) -> None:
    if is_foreign(problem) and getattr(section, "at", None):
        section.__exit__(None, None, None)  # repeated from its start
    _restore(section, context_above(section))


def _restore(section: AggregatedSection, above: Any) -> None:
    section.at = 0
    if CURRENT.get() is section:
        CURRENT.set(above)
