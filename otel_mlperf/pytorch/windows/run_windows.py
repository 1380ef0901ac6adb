"""Profiler windows of a run: those of its settings, and those requested while the run is active.

Before each step, a run checks whether there is something to do, which costs a call and one memory
access. torch is used only when a window starts.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.api.start import at_begin, at_takeover
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.settings.profile_schedule import Schedule, parse_schedule

if TYPE_CHECKING:
    from otel_mlperf.journal.profiler_windows import Answer
    from otel_mlperf.pytorch.windows.window_plan import WindowPlan
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.lifecycle.run import Run
    from otel_mlperf.recorder.sections.parents import OpenStep
    from otel_mlperf.settings.config import Config

_CONTROL, _TAKEN = int(Word.CONTROL), int(Word.TAKEN)
_NEVER = -1


class RunWindows:
    """Profiler window plans of one run, carried out at its steps."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._words = recorder.journal.words
        self._plans: list[WindowPlan] = []
        self._taken = 0
        self._requested: WindowPlan | None = None
        """Plan of the last accepted request."""
        self._idle = 0
        """Value of the word CONTROL as long as there is nothing to do."""
        recorder.stepping.before_step.append(self._before)
        self._words[Word.LISTENS] = 1

    def add(self, plan: WindowPlan) -> None:
        """Carry out ``plan`` at the steps from now on."""
        self._follow([*self._plans, plan])

    def remove(self, plan: WindowPlan) -> None:
        """Stop following a plan, and end its open window, if there is one."""
        if plan in self._plans:
            self._follow([other for other in self._plans if other is not plan])
            plan.end()

    def end(self) -> None:
        """End all open windows, because the run ends."""
        for plan in self._plans:  # `remove` replaces the list
            self.remove(plan)

    def _before(self) -> None:
        if self._words[_CONTROL] == self._idle:
            return
        try:
            request = self._words[_CONTROL]
            if request != self._taken:
                self._take(request)
            if self._is_outside():
                for plan in self._plans:
                    plan.before()
                self._recorder.stepping.busy_ns = time.monotonic_ns()
        except BaseException as error:  # noqa: BLE001 - decided there
            self._failed(error)

    def _after(self, step: OpenStep) -> None:
        try:
            is_outside = self._is_outside()
            for plan in self._plans:
                plan.after(step, is_outside=is_outside)
            self._recorder.stepping.busy_ns = time.monotonic_ns()
            if any(plan.is_over for plan in self._plans):
                self._follow([plan for plan in self._plans if not plan.is_over])
        except BaseException as error:  # noqa: BLE001 - decided there
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        if is_foreign(error):
            for plan in self._plans:
                plan.drop()
        internal_error(error)  # raises exceptions of the program

    def _follow(self, plans: list[WindowPlan]) -> None:
        self._plans, recorder = plans, self._recorder
        self._idle = _NEVER if plans else self._taken
        # A new list: the recorder may be iterating over the old one at this moment.
        other_calls = [call for call in recorder.stepping.after_step if call != self._after]
        recorder.stepping.after_step = [*other_calls, self._after] if plans else other_calls

    def _is_outside(self) -> bool:
        """Return whether the current thread is in no step, so work done now belongs to no step."""
        opened = self._recorder.stepping.open
        if not opened:
            return True
        _, track = self._recorder.parents.surrounding()
        return not any(step.section.track == track for step in list(opened.values()))

    def _take(self, request: int) -> None:
        """Accept a request to start a window with the next step, or to end the requested window."""
        from otel_mlperf.journal.profiler_windows import answer_word, is_stop, steps_of
        from otel_mlperf.pytorch.windows.window_plan import WindowPlan

        if is_stop(request):
            self._words[_CONTROL] = self._taken
            if self._requested is not None:
                self._requested.stop()
            return
        # Acknowledged immediately: otherwise the requester would time out. Afterwards it waits as
        # long as the window lasts.
        self._taken = self._words[_TAKEN] = request

        def answer(result: Answer, number: int) -> None:
            # ANSWER must be written first: a reader that sees ANSWERED change reads ANSWER
            # immediately.
            self._words[Word.ANSWER] = answer_word(result, number)
            self._words[Word.ANSWERED] = request

        like = parse_schedule(self._recorder.config.profile) or Schedule()
        phase = self._recorder.registry.phase
        schedule = dataclasses.replace(
            like, skip_first=0, wait=0, warmup=1, active=steps_of(request), repeat=1, every="run",
            unit="step", phase=phase,
        )  # fmt: skip
        self._requested = WindowPlan(self._recorder, schedule, answer)
        self.add(self._requested)


def windows_of(recorder: Recorder) -> RunWindows | None:
    """Return the windows of a run; None in a forked child process, because that is no rank."""
    return recorder.kept.get(RunWindows)


def _begin(run: Run) -> None:
    recorder = run._recorder
    if recorder is None:
        return
    windows = RunWindows(recorder)
    recorder.kept[RunWindows] = windows
    run.before_end.append(windows.end)
    _plan(windows, recorder, recorder.config.profile)


def _plan(windows: RunWindows, recorder: Recorder, profile: str) -> None:
    schedule = parse_schedule(profile)
    if schedule is not None:
        from otel_mlperf.pytorch.windows.window_plan import WindowPlan

        windows.add(WindowPlan(recorder, schedule))


def _take_over(run: Run, settings: Config) -> None:
    """Follow the schedule in the program's ``settings``, unless the run already has one."""
    recorder = run._recorder
    windows = None if recorder is None else windows_of(recorder)
    if recorder is not None and windows is not None and not recorder.config.profile:
        _plan(windows, recorder, settings.profile)


at_begin.append(_begin)
at_takeover.append(_take_over)
