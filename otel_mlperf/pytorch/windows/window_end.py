"""End of a run's profiler window: its trace and description, or the reason why it was skipped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import ids, names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.pytorch.windows.seen_steps import seen_steps_of
from otel_mlperf.pytorch.windows.trace_file import folder_of, name_of, next_number
from otel_mlperf.recorder.core.faults import warn_once

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.pytorch.windows.capture import Capture, Skipped
    from otel_mlperf.recorder.lifecycle.clocks import Clocks
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_METRIC: Final = {
    "busy": names.SKIPPED_BUSY,
    "no_torch": names.SKIPPED_NO_TORCH,
    "memory": names.SKIPPED_MEMORY,
    "cuda_graphs": names.SKIPPED_CUDA_GRAPHS,
    "failed": names.SKIPPED_FAILED,
    "not_reached": names.SKIPPED_NOT_REACHED,
}


class Facts(NamedTuple):
    """Facts about a window in addition to its steps."""

    export_span: int
    """Span id of the section in which the trace was written."""
    start: Clocks
    end: Clocks
    activities: list[str]
    is_cut: bool = False
    problem: str = ""


class WindowEnd(NamedTuple):
    """Result of a window."""

    trace: Path | None
    number: int
    reason: Skipped
    """Why there is no trace, if there is none."""


def end_window(
    recorder: Recorder, capture: Capture, *, is_cut: bool = False, folder: Path | None = None
) -> WindowEnd:
    """End a window of a run; write its trace, and its description for the agent.

    Args:
        recorder: the run.
        capture: the window.
        is_cut: whether it ends before its time.
        folder: folder for the trace instead of the run's; the agent does not see it there.
    """
    # Read first: after the end it is not known whether it has recorded.
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
            warn_once("a profiler window stays where it is (%s): %s", trace, error)
    if trace is not None:
        _count(recorder, names.PROFILE_WINDOWS)
    return WindowEnd(trace, number, reason)


def drop_window(recorder: Recorder | None, capture: Capture) -> None:
    """End a window that was interrupted, without a trace."""
    capture.drop()
    if recorder is not None:
        seen_steps_of(recorder).end()


def describe(recorder: Recorder, trace: Path, number: int, facts: Facts) -> Path:
    """Write the description, for the agent, of a window whose trace is complete.

    Raises:
        OSError: it cannot be written.
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
    """Count one skipped window."""
    if recorder is not None:
        _count(recorder, _METRIC[reason])


def _count(recorder: Recorder, metric: names.Metric) -> None:
    if not recorder.is_retired:
        recorder.cells.add(metric.name, metric.unit, 1)
