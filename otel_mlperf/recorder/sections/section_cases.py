"""Creation, entry and exit of sections that the fast path cannot handle.

These are sections that:

* belong to the run's trace even inside a step, or are requests;
* are entered again while they are open;
* have an error, further data than attributes, or steps inside;
* measure resource usage or GPU time, or are profiled;
* print their duration on stderr.
"""

from __future__ import annotations

import sys
from time import monotonic_ns as clock
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mlperf import names
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.scrub import describe_exception, is_failure
from otel_mlperf.recorder.core.used_so_far import Counters
from otel_mlperf.recorder.sections.profiled_calls import ProfiledCalls
from otel_mlperf.recorder.sections.section import Section, bind
from otel_mlperf.recorder.sections.section_context import (
    CURRENT,
    PARENTS,
    SLOW,
    Extra,
    SectionContext,
    aggregate_around,
    context_above,
    extra_of,
    sections_above,
)
from otel_mlperf.recorder.sections.slow_path import EXPECTED, SlowPath, kind_of
from otel_mlperf.recorder.sections.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.sections.parents import OpenStep, Parents


_PRINTED_MEASURES: Final = (
    ("cpu {:.2f} ms", names.CPU_NS, 1e6),
    ("memory {:+.2f} MB", names.MEMORY_GROWTH, 1e6),
    ("peak {:.2f} MB", names.MEMORY_PEAK, 1e6),
    ("gpu memory {:+.2f} MB", names.CUDA_GROWTH, 1e6),
    ("gpu peak {:.2f} MB", names.CUDA_PEAK, 1e6),
)


def printed_line(name: str, duration_ns: int, usage: Usage | None) -> str:
    """Return the line to print for a section, without unknown values; ``usage`` may be None.

    Example: ``collate 3.20 ms: cpu 3.10 ms, memory +4.19 MB``.
    """
    line = f"{name} {duration_ns / 1e6:.2f} ms"
    figures = usage.figures if usage is not None else None
    if not figures:
        return line
    by_key = {measure.key: value for measure, value in zip(names.MEASURES, figures, strict=True)}
    values = [
        template.format(value / unit)
        for template, measure, unit in _PRINTED_MEASURES
        if (value := by_key[measure.key]) is not None
    ]
    return f"{line}: {', '.join(values)}" if values else line


class StepsInside(Protocol):
    """Interface to the steps, used when sections around or inside a step end."""

    def end(self, step: OpenStep, t1: int = 0, error: list[str] | None = None) -> None:
        """End an open step at ``t1`` (0: now), with the exception by which it failed, if any."""

    def end_inside(self, section: SectionContext, t1: int, error: list[str] | None) -> None:
        """End the open steps inside a section that ends at ``t1``; ``error`` is None on success."""

    def note_crossing(self, section: SectionContext, words: list[str]) -> None:
        """Record that an exception leaves a section, for the outer step and the loops inside."""


class RecordedSections(SlowPath):
    """Creation, entry and exit of the sections of one recording."""

    steps: StepsInside
    """Set by the recorder's constructor: steps are a layer above."""

    def __init__(self, recording: Recording, parents: Parents) -> None:
        super().__init__(recording)
        self.parents, registry = parents, recording.registry
        self._slow, self._outside = registry.slow, registry.outside
        self._requests, self._printed = registry.requests, registry.printed
        self._measured, self._on_device = registry.measured, registry.on_device
        self.profiles = ProfiledCalls(recording, parents)
        self._counters = Counters()
        self.at_failure: list[Callable[[SectionContext, BaseException], None]] = []
        """Functions called with an open section and an exception that leaves it; must not raise."""
        self._last_error: tuple[int, int, str, str] = (0, 0, "", "")
        self.binding = bind(recording, self, parents, self.enter_slow, self.exit_slow)
        self.new = self.binding.section
        registry.at_new_name.append(self.binding.watch_asyncio)

    def make(self, entry: int) -> Section:
        """Return a new section of a registered name, which the caller must enter."""
        section = self.new()
        section.entry = entry
        section.sid = SLOW if entry in self._slow else 0
        section.extra = None
        return section

    def enter(
        self, name: str, category: str | None = None, attributes: dict[str, Any] | None = None
    ) -> Section:
        """Open and return a section of the recorder itself; ``name`` implies a missing category."""
        # No ``**`` for attributes: after such a call the interpreter checks for signals, and an
        # exception there would leave an open section that no variable refers to.
        section = self.make(self.recording.registry.entry((name, category), name, category))
        if attributes:
            extra_of(section).attributes = attributes
        return section.__enter__()

    def enter_slow(self, section: Section) -> Section:
        """Enter a section that needs the slow path, or a fresh copy if it was entered before."""
        above = CURRENT.get()
        if section.sid == SLOW:
            try:
                if (seen := self.watched(section.entry)) is not None:
                    extra = extra_of(section)
                    extra.usage, extra.stamp = seen.usage, seen.stamp
                if section.entry in self._printed:
                    extra_of(section)  # makes the exit take the slow path, which prints
                if section.entry in self._outside:
                    self.open_outside(section)
                elif section.entry in self._requests:
                    self._open_request(section, above)
                else:
                    section.sid = 0
                    section.__enter__()
                self.profiles.begin(section)
            except BaseException as error:  # noqa: BLE001 - the callee decides
                self.rescue_enter(section, error, above)
            return section
        try:
            return self._again(section).__enter__()
        except BaseException as error:  # noqa: BLE001 - the callee decides
            internal_error(error)
            return section

    def watched(self, entry: int) -> Extra | None:
        """Start to measure a section's resource usage and device time, as its name requires.

        Returns:
            An ``Extra`` with usage and start stamp; None if the name requires neither.
        """
        began_ns = clock()
        stamp = None if self.stamps is None or entry not in self._on_device else self.stamps.begin()
        # After the stamp: usage must not include the cost of the stamp.
        usage = self._measured_from_now() if entry in self._measured else None
        if stamp is None and usage is None:
            return None
        extra = Extra()
        extra.stamp, extra.usage = stamp, usage
        self.count_watching(began_ns)
        return extra

    def count_watching(self, began_ns: int) -> None:
        """Count the time since ``began_ns`` as overhead of the recorder."""
        if not self.recording.is_retired:
            self.recording.journal.count(Word.WATCH_TIME, clock() - began_ns)

    def _measured_from_now(self) -> Usage | None:
        try:
            return Usage(self._counters)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return None  # nothing can be read

    def _again(self, section: Section) -> Section:
        """Return a new section with the name and attributes of one that was entered before."""
        fresh = self.make(section.entry)
        fresh.at = 0
        extra = extra_of(section)
        if extra.attributes and not extra.again:
            extra_of(fresh).attributes = dict(extra.attributes)
        # Stored before it is entered, so that it is exited after an interrupt, too. Drop ended
        # copies.
        extra.again = [*(one for one in extra.again or [] if one.at), fresh]
        return fresh

    def open_outside(self, section: Section) -> None:
        """Open a section that belongs to the run's trace, even inside a step."""
        around, track = self.parents.surrounding()
        step = self.parents.step_around(around)
        sid = self.recording.next_id()
        if step is None:
            chunk, track = self.parents.place(CURRENT.get(), sid, section)
        else:
            chunk = PARENTS.pack(step.link, self.recording.meta.run_span, track)
            extra_of(section).within = aggregate_around(CURRENT.get(), track)
            if step.section.track == track:
                extra_of(section).step = step
        self.open(section, sid, chunk, track)
        self.make_current(section)

    def _open_request(self, section: Section, above: Any) -> None:
        """Open a request, as a new trace unless it is inside a step, request or foreign span."""
        sid, around = self.recording.next_id(), self.parents.surrounding()[0]
        chunk, track = self.parents.place(above, sid, section)
        parent = PARENTS.unpack(chunk)[0]
        # The run's span is not foreign, although in a forked child it is of the parent process.
        has_foreign_parent = around is None and parent not in (0, self.recording.meta.run_span)
        is_inside = any(one.at and one.entry in self._requests for one in sections_above(above))
        if not (has_foreign_parent or is_inside or self.parents.step_around(around)):
            # A new trace; the agent links it to the parent's span, like the trace of a step.
            chunk = PARENTS.pack(parent, sid, track)
        self.open(section, sid, chunk, track)
        self.make_current(section)

    def section_to_exit(self, section: SectionContext) -> SectionContext:
        """Return the section that ends now: ``section``, or a copy made by entering it again."""
        again = section.extra.again if section.extra is not None else None
        current = CURRENT.get()
        if not again or current is section:
            return section
        inside = [one for one in again if one.at]
        if current in inside:
            return current  # type: ignore[no-any-return]
        return inside[-1] if inside else section

    @at_once
    def exit_slow(self, section: Section, t1: int, error: BaseException | None) -> None:
        """Exit a section that has an error, or an ``Extra`` with more than attributes."""
        try:
            chosen: Any = self.section_to_exit(section)
            if getattr(chosen, "at", None):
                self._exit(chosen, t1, error)
            else:
                self.leave(chosen)
        except BaseException as problem:  # noqa: BLE001 - the callee decides
            try:
                left, end = chosen, t1
            except UnboundLocalError:  # interrupted before the first instruction
                left, end = section, 0
            try:
                self.rescue_exit(left, end, 0, problem, error)
            except RecursionError as deeper:  # as in ``BoundSection.__exit__``
                if deeper is problem or problem.__class__ not in EXPECTED:
                    raise problem from None
            if problem.__class__ is RecursionError:
                rest = left, left.at, end, 0, None if error is None else error.__class__
                self.unfinished = self.finish_late, rest, self.unfinished
                left.at = 0

    def _exit(self, section: Section, t1: int, error: BaseException | None) -> None:
        extra = section.extra
        if extra is not None:
            self._end_watching(section, extra)
        failure = self.describe(section, error) if is_failure(error) else None
        # Inner sections first: readers consider a section that ends after its parent as concurrent.
        self.finish_rest(t1)
        if error is not None:
            self._close_leaked(section, t1, failure)
        if extra is not None:
            self.steps.end_inside(section, t1, failure)
        self.leave(section)
        self.close(section, t1, failure)
        if section.entry in self._printed:
            self._print(section, t1)
        if extra is not None and extra.profiled is not None:
            self.profiles.write(section, extra.profiled)
        if extra is not None and extra.step is not None:
            self._exclude(section, extra.step, t1 - section.t0)
        if failure is not None:
            self.steps.note_crossing(section, failure)

    def _end_watching(self, section: Section, extra: Extra) -> None:
        if extra.profiled is not None:
            extra.profiled.profile.end()  # first: the time after it is the recorder's cost
        if extra.usage is None and extra.stamp is None:
            return
        began_ns = clock()
        if extra.usage is not None:
            extra.usage.end()  # early, for the same reason
        if extra.stamp is not None and self.stamps is not None:
            stamp, extra.stamp = extra.stamp, None
            extra.flags |= self.stamps.end(stamp, section)
        self.count_watching(began_ns)

    def _print(self, section: Section, t1: int) -> None:
        try:
            name = self.recording.registry.about(section.entry)[0]
            usage = section.extra.usage if section.extra is not None else None
            if sys.stderr is not None:
                sys.stderr.write(printed_line(name, t1 - section.t0, usage) + "\n")
        except Exception as error:  # noqa: BLE001 - stderr may be closed
            internal_error(error)

    def finish(
        self, section: SectionContext, t1: int, slot: int, error: BaseException | None
    ) -> None:
        """End the steps inside a section, and complete the section's exit; see ``rescue_exit``."""
        if section.extra is not None and getattr(section, "at", None):
            self.steps.end_inside(section, t1, kind_of(error))
        super().finish(section, t1, slot, error)

    def _exclude(self, section: Section, step: OpenStep, duration_ns: int) -> None:
        """Exclude a section's time from the interrupted ``step`` and from the outer section."""
        step.excluded += duration_ns
        around = self.parents.section_around(context_above(section), section.track)
        if around is not None and around is not step.section and around.track == section.track:
            extra_of(around).excluded_ns += duration_ns

    def _close_leaked(self, section: Section, t1: int, words: list[str] | None) -> None:
        """End at ``t1`` the inner sections whose ``__exit__`` was interrupted before its start."""
        leaked, inner = [], CURRENT.get()
        while inner is not section and (isinstance(inner, self.new) or _adds_up(inner)):
            leaked.append(inner)
            inner = context_above(inner)
        if inner is not section:
            return  # the section was entered in another context
        for inner in leaked:
            step = self.parents.steps.get(inner.sid)
            if inner.adds_up:
                inner.__exit__(None, None, None)
            elif step is not None:
                self.steps.end(step, t1, words)
            elif inner.at:
                self.close(inner, t1, words)

    def describe(self, section: SectionContext, error: BaseException | None) -> list[str]:
        """Return type, message and stack of the exception that leaves a section.

        The stack is empty if the same exception already left an inner section.
        """
        assert error is not None
        self.notify_failure(section, error)
        # Compare the exception's id: a reference would keep its frames alive. Type and message are
        # compared, too, because an id may be reused.
        before_id, parent, kind, message = self._last_error
        crossed = before_id == id(error) and parent == section.sid
        described = describe_exception(
            error, with_text=self.recording.config.exception_text, with_stack=not crossed
        )
        if crossed and [kind, message] != described[:2]:
            described = describe_exception(error, with_text=self.recording.config.exception_text)
        self._last_error = (id(error), PARENTS.unpack(section.chunk)[0], described[0], described[1])
        return described

    def notify_failure(self, section: SectionContext, error: BaseException) -> None:
        """Call the functions of ``at_failure``, because an exception leaves ``section``."""
        if not self.recording.is_retired:
            for call in self.at_failure:
                call(section, error)


def _adds_up(context: Any) -> bool:
    return isinstance(context, SectionContext) and context.adds_up
