"""How are 100,000 sections a second measured without a row for each?

Their count, sum, shortest and longest add up in a cell for each name, enclosing section and phase.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.sections.section_context import CURRENT, SectionContext

if TYPE_CHECKING:
    from types import TracebackType

    from otel_mlperf.recorder.core.recorder import Recorder
    from otel_mlperf.recorder.instruments.cells import ThreadCells

_clock = time.monotonic_ns
_get_current = CURRENT.get


class Sum:
    """What the calls under one name add up to."""

    __slots__ = ("category", "local", "name", "recorder")

    def __init__(self, recorder: Recorder, local: ThreadCells, name: str, category: str) -> None:
        self.recorder, self.local, self.name, self.category = recorder, local, name, category

    def around(self) -> tuple[Any, ...]:
        """The key of the caller's cell where its context is not simply a section."""
        section, _ = self.recorder.places.surrounding()
        if section is None:
            return (self, 0, self.recorder.registry.phase)
        return (self, section.entry)

    def first_time(self, key: tuple[Any, ...]) -> int:
        """This thread's cell under a section in which it was not called before."""
        recorder = self.recorder
        enclosing = recorder.registry.about(key[1])[0] if key[1] else ""
        content = (
            "cell",
            "aggregate",
            self.name,
            self.category,
            enclosing,
            recorder.registry.phase,
        )
        return recorder.cells.word(key, content)


class Aggregate:
    """One call of an aggregated section."""

    __slots__ = ("_sum", "_t0")

    def __init__(self, of: Sum) -> None:
        self._sum = of

    def __enter__(self) -> Aggregate:
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
            of = self._sum
            above = _get_current()
            is_plain = isinstance(above, SectionContext) and above.at
            key = (of, above.entry) if is_plain else of.around()
            word = of.local.cells.get(key) or of.first_time(key)
            if not word or of.recorder.is_retired:
                return
            words = of.recorder.journal.words
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
        from otel_mlperf.recorder.api.span import Handle

        return Handle(self._sum.name, self._sum.category, aggregate=True)(function)

    def set(self, **attributes: Any) -> None:
        """Nothing is recorded: an aggregated section has no attributes."""
