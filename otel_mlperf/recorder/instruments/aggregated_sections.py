"""How are 100,000 sections a second measured without a row for each?

Their count, sum, shortest and longest add up in a cell for each name, enclosing section and phase.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from otel_mlperf import names
from otel_mlperf.journal.layout import MAX_ENTRIES
from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, say_once
from otel_mlperf.recorder.core.name_registry import TOO_MANY_NAMES, implied_category
from otel_mlperf.recorder.sections.section_context import CURRENT, SectionContext

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.instruments.cells import Cells
    from otel_mlperf.recorder.sections.parents import Parents

_clock = time.monotonic_ns
_get_current = CURRENT.get


class AggregatedName:
    """What the calls under one name add up to."""

    __slots__ = ("category", "cells", "local", "name", "parents", "recording")

    def __init__(
        self, recording: Recording, parents: Parents, cells: Cells, name: str, category: str
    ) -> None:
        self.recording, self.parents, self.cells = recording, parents, cells
        self.local, self.name, self.category = cells.local, name, category

    def around(self) -> tuple[Any, ...]:
        """The key of the caller's cell where its context is not simply a section."""
        section, _ = self.parents.surrounding()
        if section is None:
            return (self, 0, self.recording.registry.phase)
        return (self, section.entry)

    def first_time(self, key: tuple[Any, ...]) -> int:
        """This thread's cell under a section in which it was not called before."""
        registry = self.recording.registry
        enclosing = registry.about(key[1])[0] if key[1] else ""
        content = ("cell", "aggregate", self.name, self.category, enclosing, registry.phase)
        return self.cells.word(key, content)


class AggregatedSection:
    """One call of an aggregated section."""

    __slots__ = ("_of", "_t0")
    decorate: ClassVar[Callable[..., Callable[[Any], Any]]]
    """Name and category to a decorator: lent by ``span``, which lies above."""

    def __init__(self, of: AggregatedName) -> None:
        self._of = of

    def __enter__(self) -> AggregatedSection:
        self._t0 = _clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        duration = _clock() - self._t0
        try:
            of = self._of
            above = _get_current()
            is_plain = isinstance(above, SectionContext) and above.at
            key = (of, above.entry) if is_plain else of.around()
            word = of.local.cells.get(key) or of.first_time(key)
            if not word or of.recording.is_retired:
                return
            # A cell is its thread's alone, so only a signal handler can come in between.
            words = of.recording.journal.words
            count = words[word + 1]
            words[word + 2] += duration
            if not count or duration < words[word + 3]:
                words[word + 3] = duration
            if duration > words[word + 4]:  # noqa: PLR1730 - max() costs a call and a store
                words[word + 4] = duration
            # Read again: a signal handler may have added to the same cell.
            words[word + 1] += 1
        except Exception as problem:  # noqa: BLE001 - recording never raises
            internal_error(problem)

    def __call__(self, function: Any) -> Any:
        """Decorates a function, for ``@span("name", aggregate=True)``."""
        return self.decorate(self._of.name, self._of.category, aggregate=True)(function)

    def set(self, **attributes: Any) -> None:
        """Nothing is recorded: an aggregated section has no attributes."""


class AggregatedSections:
    """The names of one recording whose calls are only added up."""

    def __init__(self, recording: Recording, parents: Parents, cells: Cells) -> None:
        self._recording, self._parents, self._cells = recording, parents, cells
        self._names: dict[Any, AggregatedName] = {}

    def make(self, name: Any, category: str | None) -> AggregatedSection:
        """A section that is only added up, not entered yet."""
        key = name if category is None else (name, category)
        of = self._names.get(key)
        if of is None:
            of = self._first_time(key, name, category)
        return AggregatedSection(of)

    def _first_time(self, key: Any, name: Any, category: str | None) -> AggregatedName:
        if len(self._names) >= MAX_ENTRIES:
            say_once(TOO_MANY_NAMES, MAX_ENTRIES)
            key = name = names.OTHER
        text = safe_name_text(name)
        kind = safe_name_text(category) if category else implied_category(text)
        of = AggregatedName(self._recording, self._parents, self._cells, text, kind)
        return self._names.setdefault(key, of)
