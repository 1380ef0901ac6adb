"""End of a run's profiler window: the profiled steps, the trace and its description.

A skipped window has none of these, but a reason.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import ids, names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.pytorch.windows.trace_file import folder_of, name_of, next_number
from otel_mlperf.recorder.core.faults import warn_once

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.pytorch.windows.capture import Capture, Skipped
    from otel_mlperf.recorder.lifecycle.clocks import Clocks
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep

_MAX_STEPS: Final = 4096
"""Maximum number of steps listed for one window."""


class SeenSteps:
    """Steps of one run during which a profiler recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = weakref.ref(recorder)
        self._is_recording = False
        self._seen: dict[int, tuple[str, int, int]] = {}
        self._still_open: set[int] = set()
        # Must be first: a callback that ends a window after a step must find that step in the list.
        recorder.stepping.after_step.insert(0, self._ended)

    def begin(self) -> None:
        """Note all steps from now on, because a profiler is recording."""
        recorder = self._recorder()
        if recorder is not None:
            self._seen, self._still_open, self._is_recording = {}, set(), True
            recorder.stepping.note_profiler(self, is_on=True)

    def end(self) -> None:
        """Note the steps that are still open, then stop noting steps."""
        recorder = self._recorder()
        if recorder is None or not self._is_recording:
            return
        opened = recorder.stepping.open
        for step in list(opened.values()):
            self._note(step)
        self._still_open = set(opened)
        if not opened:
            recorder.stepping.note_profiler(self, is_on=False)
        self._is_recording = False  # must be last: after an interrupt, a second call repeats it

    def take(self) -> dict[int, tuple[str, int, int]]:
        """Return and clear the noted steps, by span id: phase, index in the phase, step number.

        The steps are in the order in which they ended.
        """
        seen, self._seen = self._seen, {}
        return seen

    def _ended(self, step: OpenStep) -> None:
        if self._is_recording:
            self._note(step)
        elif self._still_open:
            recorder = self._recorder()
            assert recorder is not None
            self._still_open &= recorder.stepping.open.keys()
            if not self._still_open:
                recorder.stepping.note_profiler(self, is_on=False)

    def _note(self, step: OpenStep) -> None:
        if len(self._seen) < _MAX_STEPS:
            self._seen[step.section.sid] = (step.phase, step.n, step.number)


def seen_steps_of(recorder: Recorder) -> SeenSteps:
    """Return the ``SeenSteps`` of a run, which the first call creates."""
    profiled: SeenSteps | None = recorder.kept.get(SeenSteps)
    if profiled is None:
        profiled = recorder.kept[SeenSteps] = SeenSteps(recorder)
    return profiled


_METRIC: Final = {
    "busy": names.SKIPPED_BUSY,
    "no_torch": names.SKIPPED_NO_TORCH,
    "memory": names.SKIPPED_MEMORY,
    "cuda_graphs": names.SKIPPED_CUDA_GRAPHS,
    "failed": names.SKIPPED_FAILED,
    "not_reached": names.SKIPPED_NOT_REACHED,
}


class Facts(NamedTuple):
    """Facts about a profiler window in addition to its steps."""

    export_span: int
    """Span id of the section in which the trace was written."""
    start: Clocks
    end: Clocks
    activities: list[str]
    is_cut: bool = False
    problem: str = ""


class WindowEnd(NamedTuple):
    """Trace of a profiler window that has ended, or the reason why there is none."""

    trace: Path | None
    number: int
    reason: Skipped
    """Why there is no trace, if there is none."""


def end_window(
    recorder: Recorder, capture: Capture, *, is_cut: bool = False, folder: Path | None = None
) -> WindowEnd:
    """End a window of a run; write the trace and, for the agent, the trace's description.

    Args:
        recorder: recorder of the run.
        capture: the window.
        is_cut: whether the window ends early.
        folder: folder for the trace, which the agent does not read (None: the run's folder).
    """
    # Read first: the end resets ``is_recording``.
    reason: Skipped = "failed" if capture.is_recording else "not_reached"
    number = next_number()
    trace = capture.finish(folder or folder_of(recorder), name_of(recorder, number))
    seen_steps_of(recorder).end()
    if capture.is_lost or (capture.gave_way and reason == "not_reached"):
        reason = "busy"
    if trace is not None and folder is None:
        facts = Facts(
            export_span=capture.export_span,
            start=capture.start_at,
            end=capture.end_at,
            activities=capture.activities,
            is_cut=is_cut or capture.gave_way,
            problem=capture.problem,
        )
        try:
            describe(recorder, trace, number, facts)
        except OSError as error:
            raise_foreign(error)
            warn_once(
                "a profiler window cannot be added to the run; its trace stays at %s: %s",
                trace,
                error,
            )
    if trace is not None:
        _count(recorder, names.PROFILE_WINDOWS)
    return WindowEnd(trace, number, reason)


def drop_window(recorder: Recorder | None, capture: Capture) -> None:
    """End an interrupted window without a trace."""
    capture.drop()
    if recorder is not None:
        seen_steps_of(recorder).end()


def describe(recorder: Recorder, trace: Path, number: int, facts: Facts) -> Path:
    """Describe a window with a complete trace in a file for the agent; return the file's path.

    Raises:
        OSError: the description cannot be written.
    """
    from otel_mlperf.journal.profiler_windows import Window, WindowStep, write_window

    meta = recorder.meta
    steps = [
        WindowStep(
            phase,
            n,
            count,
            f"{span:016x}",
            f"{ids.trace_id(meta.run_id, meta.restart, phase, n):032x}",
        )
        for span, (phase, n, count) in seen_steps_of(recorder).take().items()
    ]
    window = Window(
        run_id=meta.run_id,
        restart=meta.restart,
        rank=meta.rank,
        world_size=meta.world_size,
        pid=os.getpid(),
        number=number,
        trace=trace.name,
        anchor=(meta.unix_ns, meta.monotonic_ns),
        parent=f"{facts.export_span:016x}",
        steps=steps,
        start=facts.start,
        end=facts.end,
        activities=facts.activities,
        is_cut=facts.is_cut,
        problem=facts.problem,
    )
    return write_window(trace.parent, window)


def count_skipped(recorder: Recorder | None, reason: Skipped) -> None:
    """Count a skipped window in the cells of its run; without a run, do nothing."""
    if recorder is not None:
        _count(recorder, _METRIC[reason])


def _count(recorder: Recorder, metric: names.Metric) -> None:
    if not recorder.is_retired:
        recorder.cells.add(metric.name, metric.unit, 1)
