"""Window plan: the actions before and after each step for a schedule of profiler windows.

One plan follows one schedule through the steps of one thread. Several plans can be active, but the
profiler lock allows only one of them to record at a time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from otel_mlperf.journal.profiler_windows import Answer
from otel_mlperf.pytorch.windows.capture import Capture
from otel_mlperf.pytorch.windows.window_end import (
    count_skipped,
    drop_window,
    end_window,
    seen_steps_of,
)
from otel_mlperf.recorder.core.faults import log, warn_once
from otel_mlperf.recorder.core.thread_ident import get_ident

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_mlperf.pytorch.windows.capture import Skipped
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep
    from otel_mlperf.settings.profile_schedule import Action, Schedule

_NO_EPOCH_YET = object()


class WindowPlan:
    """Plan that carries out one schedule of profiler windows.

    Args:
        recorder: recorder of the run whose steps the plan follows.
        schedule: selects the steps, and contains the options of the profiler.
        answer: called with the result and number of each window, for a waiting requester.
    """

    def __init__(
        self,
        recorder: Recorder,
        schedule: Schedule,
        answer: Callable[[Answer, int], None] | None = None,
    ) -> None:
        self._recorder = recorder
        self._schedule = schedule
        self._answer = answer
        self._position = 0
        self._turns = 0
        """Number of windows that were written or skipped."""
        self._epoch: Any = _NO_EPOCH_YET
        self._epochs = -1
        """Number of the current epoch in the schedule, counted from 0."""
        self._thread = 0
        self._capture: Capture | None = None
        self._mark: Any = None
        self._is_stopped = False
        self.traces: list[Path] = []

    @property
    def is_over(self) -> bool:
        """Return whether no window is open and no further window will be recorded."""
        of = self._schedule
        if self._is_stopped:
            return self._capture is None
        return 0 < of.most_windows <= self._turns and self._capture is None

    def before(self) -> None:
        """Prepare, start or end a window, before a step that is not nested in another step."""
        if self._is_stopped:
            if self._thread in (0, get_ident()):
                self.end()
            return
        if not self._is_followed(self._recorder.registry.phase):
            if self._thread == get_ident():
                self._finish_early()  # e.g. before a validation, which would fill it
            return
        self._restart_with_epoch()
        self._act(self._schedule.action(self._position, self._epochs))

    def _act(self, action: Action) -> None:
        if not action:
            return
        if self._capture is None:
            if not self._schedule.is_first(self._position):
                return  # its window was skipped, or cut
            self._prepare()
        if self._capture is not None and action == "active":
            self._record()

    def after(self, step: OpenStep, *, is_outside: bool) -> None:
        """End the window after its last step; ``is_outside``: whether the step was not nested."""
        self._unmark()
        counts = self._is_followed(step.phase) and is_outside
        is_last = counts and self._schedule.is_last(self._position)
        self._position += counts  # also without a window: the schedule counts the steps
        if self._capture is None or not is_outside:
            return
        if is_last:
            self.finish()
        elif self._capture.must_end:
            log.info("a profiler window is ended early: the limit of %d events is reached, or "
                     "another profiler starts", self._schedule.events)  # fmt: skip
            self.finish(is_cut=True)

    def stop(self) -> None:
        """Request that the plan ends before the next step of its thread."""
        self._is_stopped = True

    def end(self) -> None:
        """Cancel pending windows and close the open one."""
        self._is_stopped = True
        self._finish_early()
        if not self._turns:
            log.info("a profiler schedule ended before the first window: %s", self._schedule)
            self._skip("not_reached")

    def finish(self, *, is_cut: bool = False) -> None:
        """End the open window, if any, and write the trace; ``is_cut``: the window ends early."""
        capture, self._capture = self._capture, None
        if capture is None:
            return
        try:
            self._unmark()
            ended = end_window(self._recorder, capture, is_cut=is_cut)
        except BaseException:
            drop_window(self._recorder, capture)
            raise
        if ended.trace is None:
            self._skip(ended.reason)
            return
        self.traces.append(ended.trace)
        self._turns += 1
        if self._answer is not None:
            self._answer(Answer.WRITTEN, ended.number)

    def drop(self) -> None:
        """End the open window without a trace, because it was interrupted."""
        capture, self._capture = self._capture, None
        if capture is not None:
            self._mark = None
            drop_window(self._recorder, capture)
            self._skip("failed")

    def _is_followed(self, phase: str) -> bool:
        """Return whether the plan follows steps of ``phase`` in this thread.

        The first thread that runs such a step is the only one that the plan follows.
        """
        if phase != self._schedule.phase:
            return False
        if not self._thread:
            self._thread = get_ident()
        return self._thread == get_ident()

    def _restart_with_epoch(self) -> None:
        epoch = self._recorder.stepping.epoch
        if epoch == self._epoch or "epoch" not in (self._schedule.every, self._schedule.unit):
            return
        self._finish_early()
        self._epoch, self._position = epoch, 0
        self._epochs += 1

    def _finish_early(self) -> None:
        """End the open window, which counts as cut unless the schedule's unit is the epoch."""
        self.finish(is_cut=self._schedule.unit != "epoch")

    def _prepare(self) -> None:
        if "torch" not in sys.modules:
            warn_once("the program has not imported torch: nothing is profiled")
            self._skip("no_torch")
            return
        capture = Capture(self._schedule, self._recorder, lambda: self.finish(is_cut=True))
        self._capture = capture  # before torch is called: an interrupt may occur in between
        reason = capture.prepare()
        if reason is not None:
            self._capture = None
            self._skip(reason)

    def _record(self) -> None:
        capture = self._capture
        assert capture is not None
        if not capture.is_recording:
            # Must come before torch records: its first event must be in a step that counts as
            # profiled.
            seen_steps_of(self._recorder).begin()
            reason = capture.start()
            if reason is not None:
                seen_steps_of(self._recorder).end()
                self._capture = None
                self._skip(reason)
                return
        self._unmark()
        number = self._recorder.stepping.next_number(self._schedule.phase)
        # Annotation that TensorBoard and HTA recognise as a step.
        self._mark = sys.modules["torch.profiler"].record_function(f"ProfilerStep#{number}")
        self._mark.__enter__()

    def _unmark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None and self._thread == get_ident():
            mark.__exit__(None, None, None)

    def _skip(self, reason: Skipped) -> None:
        count_skipped(self._recorder, reason)
        self._turns += 1
        if self._answer is not None:
            self._answer(Answer[reason.upper()], 0)
