"""Sections that are not the common case: how they are made, entered and left.

These are sections that:

* belong to the run's trace even inside a step;
* are entered again while they are open;
* have attributes, an error, or steps inside;
* measure their resources, have GPU times, or are profiled;
* print their time on stderr.
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


_TOLD: Final = (
    ("cpu {:.2f} ms", names.CPU_NS, 1e6),
    ("memory {:+.2f} MB", names.MEMORY_GROWTH, 1e6),
    ("peak {:.2f} MB", names.MEMORY_PEAK, 1e6),
    ("gpu memory {:+.2f} MB", names.CUDA_GROWTH, 1e6),
    ("gpu peak {:.2f} MB", names.CUDA_PEAK, 1e6),
)


def printed_line(name: str, duration_ns: int, usage: Usage | None) -> str:
    """``collate 3.20 ms: cpu 3.10 ms, memory +4.19 MB``; what is not known is left out."""
    line = f"{name} {duration_ns / 1e6:.2f} ms"
    figures = usage.figures if usage is not None else None
    if not figures:
        return line
    by_key = {measure.key: value for measure, value in zip(names.MEASURES, figures, strict=True)}
    told = [
        words.format(value / unit)
        for words, measure, unit in _TOLD
        if (value := by_key[measure.key]) is not None
    ]
    return f"{line}: {', '.join(told)}" if told else line


class StepsInside(Protocol):
    """What steps are told when a section around them, or inside them, is left."""

    def end(self, step: OpenStep, t1: int = 0, error: list[str] | None = None) -> None:
        """Ends an open step."""

    def end_inside(self, section: SectionContext, t1: int, error: list[str] | None) -> None:
        """What encloses steps ends: so do they."""

    def note_crossing(self, section: SectionContext, words: list[str]) -> None:
        """An exception leaves a section, and may end loops whose iterators are blind to it."""


class RecordedSections(SlowPath):
    """Makes, enters and leaves the sections of one recording."""

    steps: StepsInside
    """Set by whoever puts the recorder together: steps lie above."""

    def __init__(self, recording: Recording, parents: Parents) -> None:
        super().__init__(recording)
        self.parents, registry = parents, recording.registry
        self._slow, self._outside = registry.slow, registry.outside
        self._requests, self._printed = registry.requests, registry.printed
        self._measured, self._on_device = registry.measured, registry.on_device
        self.profiles = ProfiledCalls(recording, parents)
        self._counters = Counters()
        self.at_failure: list[Callable[[SectionContext, BaseException], None]] = []
        """Called when an exception leaves a section, which is still open; may not raise."""
        self._last_error: tuple[int, int, str, str] = (0, 0, "", "")
        self.binding = bind(recording, self, parents, self.enter_slow, self.exit_slow)
        self.new = self.binding.section
        registry.at_new_name.append(self.binding.watch_asyncio)

    def make(self, entry: int) -> Section:
        """A section that has not been entered."""
        section = self.new()
        section.entry = entry
        section.sid = SLOW if entry in self._slow else 0
        section.extra = None
        return section

    def enter(
        self, name: str, category: str | None = None, attributes: dict[str, Any] | None = None
    ) -> Section:
        """Opens one of the recorder's own sections."""
        # No ``**``: after a call with that the interpreter looks for signals, and what it raises
        # there finds the section open and nobody who knows it.
        section = self.make(self.recording.registry.entry((name, category), name, category))
        if attributes:
            extra_of(section).attributes = attributes
        return section.__enter__()

    def enter_slow(self, section: Section) -> Section:
        """Enters one that goes to the run's trace, is measured, or was entered before."""
        above = CURRENT.get()
        if section.sid == SLOW:
            try:
                if (seen := self.watched(section.entry)) is not None:
                    extra = extra_of(section)
                    extra.usage, extra.stamp = seen.usage, seen.stamp
                if section.entry in self._printed:
                    extra_of(section)  # leaves the long way, which prints it
                if section.entry in self._outside:
                    self.open_outside(section)
                elif section.entry in self._requests:
                    self._open_request(section, above)
                else:
                    section.sid = 0
                    section.__enter__()
                self.profiles.begin(section)
            except BaseException as error:  # noqa: BLE001 - decided there
                self.rescue_enter(section, error, above)
            return section
        try:
            return self._again(section).__enter__()
        except BaseException as error:  # noqa: BLE001 - decided there
            internal_error(error)
            return section

    def watched(self, entry: int) -> Extra | None:
        """What a section has of which is seen from now on what it uses, or when a GPU is in it."""
        began_ns = clock()
        stamp = None if self.stamps is None or entry not in self._on_device else self.stamps.begin()
        # After the stamp: what a stamp takes is not the section's.
        usage = self._measured_from_now() if entry in self._measured else None
        if stamp is None and usage is None:
            return None
        extra = Extra()
        extra.stamp, extra.usage = stamp, usage
        self.count_watching(began_ns)
        return extra

    def count_watching(self, began_ns: int) -> None:
        """What this took since then is no work of the program's; 0.2 µs of tens."""
        if not self.recording.is_retired:
            self.recording.journal.count(Word.WATCH_TIME, clock() - began_ns)

    def _measured_from_now(self) -> Usage | None:
        try:
            return Usage(self._counters)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return None  # nothing can be read

    def _again(self, section: Section) -> Section:
        """A section like one that was entered before, to be entered now."""
        fresh = self.make(section.entry)
        fresh.at = 0
        extra = extra_of(section)
        if extra.attributes and not extra.again:
            extra_of(fresh).attributes = dict(extra.attributes)
        # Known before it is entered; what was left of the others meanwhile is open no longer.
        extra.again = [*(one for one in extra.again or [] if one.at), fresh]
        return fresh

    def open_outside(self, section: Section) -> None:
        """Opens a section that belongs to the run's trace, even if a step is open around it."""
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
        """Opens one that is a trace of its own; in a step or another request it is a section."""
        sid, around = self.recording.next_id(), self.parents.surrounding()[0]
        chunk, track = self.parents.place(above, sid, section)
        parent = PARENTS.unpack(chunk)[0]
        # Of a forked child the run's span is its parent's.
        is_theirs = around is None and parent not in (0, self.recording.meta.run_span)
        is_inside = any(one.at and one.entry in self._requests for one in sections_above(above))
        if not (is_theirs or is_inside or self.parents.step_around(around)):
            # Around it in time; its trace is linked to that span, as a step's is.
            chunk = PARENTS.pack(parent, sid, track)
        self.open(section, sid, chunk, track)
        self.make_current(section)

    def one_left(self, section: SectionContext) -> SectionContext:
        """Which of the sections made from one handle ends now."""
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
        """Leaves a section that has more to it than times."""
        try:
            chosen: Any = self.one_left(section)
            if getattr(chosen, "at", None):
                self._exit(chosen, t1, error)
            else:
                self.leave(chosen)
        except BaseException as problem:  # noqa: BLE001 - decided there
            try:
                left, end = chosen, t1
            except UnboundLocalError:  # at the first instruction; asked without a call
                left, end = section, 0
            try:
                self.rescue_exit(left, end, 0, problem, error)
            except RecursionError as deeper:  # as in ``section``
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
        words = self.describe(section, error) if is_failure(error) else None
        # From inside out, as if each had been left by itself: readers take what has ended after
        # its parent for something that ran beside it.
        self.finish_rest(t1)
        if error is not None:
            self._close_leaked(section, t1, words)
        if extra is not None:
            self.steps.end_inside(section, t1, words)
        self.leave(section)
        self.close(section, t1, words)
        if section.entry in self._printed:
            self._print(section, t1)
        if extra is not None and extra.profiled is not None:
            self.profiles.write(section, extra.profiled)
        if extra is not None and extra.step is not None:
            self._exclude(section, extra.step, t1 - section.t0)
        if words is not None:
            self.steps.note_crossing(section, words)

    def _end_watching(self, section: Section, extra: Extra) -> None:
        if extra.profiled is not None:
            extra.profiled.profile.end()  # first: what follows is our cost
        if extra.usage is None and extra.stamp is None:
            return
        began_ns = clock()
        if extra.usage is not None:
            extra.usage.end()  # the same
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
        """Leaves a section as far as it has not been left yet, and what is inside."""
        if section.extra is not None and getattr(section, "at", None):
            self.steps.end_inside(section, t1, kind_of(error))
        super().finish(section, t1, slot, error)

    def _exclude(self, section: Section, step: OpenStep, duration_ns: int) -> None:
        """Takes what is outside a step from it, and from the section in it that it was in."""
        step.excluded += duration_ns
        around = self.parents.section_around(context_above(section), section.track)
        if around is not None and around is not step.section and around.track == section.track:
            extra_of(around).excluded_ns += duration_ns

    def _close_leaked(self, section: Section, t1: int, words: list[str] | None) -> None:
        """Ends sections inside whose exit never ran: an interrupt came at its very beginning."""
        leaked, inner = [], CURRENT.get()
        while inner is not section and (isinstance(inner, self.new) or _adds_up(inner)):
            leaked.append(inner)
            inner = context_above(inner)
        if inner is not section:
            return  # it is not the caller's context that the section was entered in
        for inner in leaked:
            step = self.parents.steps.get(inner.sid)
            if inner.adds_up:
                inner.__exit__(None, None, None)
            elif step is not None:
                self.steps.end(step, t1, words)
            elif inner.at:
                self.close(inner, t1, words)

    def describe(self, section: SectionContext, error: BaseException | None) -> list[str]:
        """Type, message and stack; the stack only for the innermost section that it crosses."""
        assert error is not None
        self.tell_failure(section, error)
        # By id, not by reference, which would keep the exception's frames alive. An id may be used
        # again, so type and message are compared as well.
        before_id, parent, kind, message = self._last_error
        crossed = before_id == id(error) and parent == section.sid
        words = describe_exception(
            error, with_text=self.recording.config.exception_text, with_stack=not crossed
        )
        if crossed and [kind, message] != words[:2]:
            words = describe_exception(error, with_text=self.recording.config.exception_text)
        self._last_error = (id(error), PARENTS.unpack(section.chunk)[0], words[0], words[1])
        return words

    def tell_failure(self, section: SectionContext, error: BaseException) -> None:
        """Tells those who want to know that an exception leaves an open section."""
        if not self.recording.is_retired:
            for call in self.at_failure:
                call(section, error)


def _adds_up(context: Any) -> bool:
    return isinstance(context, SectionContext) and context.adds_up
