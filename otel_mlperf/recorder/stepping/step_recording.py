"""Recording of reported, marked and inferred steps.

The program reports a step by a block, a loop or a decorated function, or marks it by ``mark_step``.
An inferred step is derived from calls of PyTorch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.core.tracks import is_in_task
from otel_mlperf.recorder.sections.section_context import (
    CURRENT,
    extra_of,
    root_of,
)
from otel_mlperf.recorder.stepping.one_step import OneStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.sections.parents import OpenStep, Parents
    from otel_mlperf.recorder.sections.section_cases import RecordedSections
    from otel_mlperf.recorder.sections.section_context import SectionContext
    from otel_mlperf.recorder.stepping.abandoned_loops import End


class Stepping(OneStep):
    """Steps of one recording: reported, marked or inferred."""

    def __init__(self, recording: Recording, sections: RecordedSections, parents: Parents) -> None:
        super().__init__(recording, sections, parents)
        self.are_reported = False
        """Whether the program reports its steps itself, so that no steps are inferred."""
        self.end_inferred: Callable[[], None] | None = None
        """Ends an inferred validation before a reported step starts; None: none is open."""
        self.validated_ns = 0
        """Monotonic end time of the last inferred validation; 0: there was none."""

    def begin(self, number: int | None = None, at_ns: int = 0) -> OpenStep | None:
        """Open a step of the current phase and make it current.

        Args:
            number: step number given by the program (default: the previous number plus one).
            at_ns: monotonic start time in ns (default: now).

        Returns:
            The new step; None if a step of the same phase encloses the caller and stays open.
        """
        if self.abandoned:
            self.abandoned.settle(None)
        if self._sections.unfinished is not None:
            self._sections.finish_rest(time.monotonic_ns())
        above, track = CURRENT.get(), get_ident()
        outer = self._parents.outer
        if outer and above is outer[-1] and above.at and above.track == track and not is_in_task():
            return self._open(number, above, None, track, above, at_ns)
        around, track, step = self._surroundings()
        if step is not None and step.phase == self._registry.phase:
            return None
        return self._open(number, around, step, track, CURRENT.get(), at_ns)

    def infer(self, at_ns: int, epoch: int | None = None) -> OpenStep | None:
        """Open an inferred step.

        Args:
            at_ns: monotonic start time in ns.
            epoch: the inferred epoch, used unless the program has reported one.

        Returns:
            The step; None if the program reports its steps itself.
        """
        own = self.epoch
        # Set before the start: functions that are called then read the epoch, such as the schedule
        # of profiler windows.
        self.epoch = epoch if own is None else own
        try:
            step = None if self.are_reported else self.begin(None, at_ns)
        finally:
            self.epoch = own
        if step is None:
            self.are_reported = True
        else:
            step.is_marked = step.is_inferred = True  # an enclosing section that ends cancels it
        return step

    def end_whole(self) -> None:
        """End the current inferred step if it is complete, because a phase starts now."""
        step = self._parents.step_around(self._parents.surrounding()[0])
        if step is not None and step.is_inferred and step.whole_ns:
            self.end(step, step.whole_ns)

    def _surroundings(self) -> tuple[SectionContext | None, int, OpenStep | None]:
        """End or cancel inferred steps; return section, track and step around the next step."""
        if self.end_inferred is not None:
            self.are_reported = True
            self.end_inferred()
        around, track = self._parents.surrounding()
        step = self._parents.step_around(around)
        if step is None or not step.is_inferred:
            return around, track, step
        self.are_reported = True
        if step.whole_ns:
            self.end(step, step.whole_ns)
        else:
            self.cancel(step)
        return self._surroundings()

    # -- steps without an explicit end -----------------------------------------------------------

    def ending(self, step: OpenStep) -> End:
        """Return a function that ends an abandoned step, given the end time and error or None."""
        return lambda t1, error: self.end(step, t1, error or step.crossed)

    def note_crossing(self, section: SectionContext, words: list[str]) -> None:
        """Record that an exception leaves ``section``; end pending loops inside it as failed."""
        step = self.open.get(root_of(section))
        if step is not None and step.section is not section:
            step.crossed = words
        self.abandoned.settle_inside(section, words)

    def end_all(self, t1: int, error: list[str] | None) -> None:
        """End all steps at the run's end; without an error, cancel incomplete marked steps."""
        self.abandoned.settle(error)
        for step in reversed(list(self.open.values())):
            extra_of(step.section)  # makes its end take the slow path: the fast path is retired
            if step.whole_ns:
                self.end(step, step.whole_ns)
            elif step.is_marked and error is None:
                self.cancel(step)
            else:
                self.end(step, t1, error)

    # -- mark_step ------------------------------------------------------------------------------

    def mark(self, number: int | None) -> bool:
        """End the open marked step, if any, and open the next one; return whether that was done.

        ``number`` is the program's number of the next step; None if the recorder counts.
        Inside a step that is not marked, nothing is done.
        """
        self.abandoned.settle(None)
        around, track, before = self._surroundings()
        if before is None or before.phase != self._registry.phase:
            step = self._open(number, around, before, track, CURRENT.get())
            step.is_marked, step.latest = True, [step]
            return True
        if not before.is_marked:
            return False
        self.end(before)
        step = self._open(number, before.around, None, track, CURRENT.get())
        step.is_marked, step.latest = True, before.latest or [step]
        step.latest[0] = step
        # Sections that are still open inside the ended step find the new step through it.
        extra_of(before.section).latest = step.latest
        return True
