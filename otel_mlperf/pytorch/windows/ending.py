"""What becomes of a run's window when it ends, and of one that never began?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.pytorch.windows.profiled import (
    Facts,
    describe,
    folder_of,
    name_of,
    next_number,
    profiled_of,
)
from otel_mlperf.recorder.core.faults import say_once

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.pytorch.windows.capture import Capture, Skipped
    from otel_mlperf.recorder.core.recorder import Recorder

_METRIC: Final = {
    "busy": names.SKIPPED_BUSY,
    "no_torch": names.SKIPPED_NO_TORCH,
    "memory": names.SKIPPED_MEMORY,
    "cuda_graphs": names.SKIPPED_CUDA_GRAPHS,
    "failed": names.SKIPPED_FAILED,
    "not_reached": names.SKIPPED_NOT_REACHED,
}


class Ended(NamedTuple):
    """What is left of a window."""

    trace: Path | None
    number: int
    reason: Skipped
    """Why there is no trace, where there is none."""


def end_window(
    recorder: Recorder, capture: Capture, *, is_cut: bool = False, folder: Path | None = None
) -> Ended:
    """Ends a window of a run and writes its trace, with what the agent needs to know of it.

    Args:
        recorder: the run.
        capture: the window.
        is_cut: whether it ends before its time.
        folder: where the trace goes instead of the run's folder; the agent does not see it there.
    """
    reason: Skipped = "failed" if capture.is_recording else "not_reached"
    number = next_number()
    trace = capture.finish(folder or folder_of(recorder), name_of(recorder, number))
    profiled_of(recorder).end()
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
            say_once("a profiler window stays where it is (%s): %s", trace, error)
    if trace is not None:
        _count(recorder, names.PROFILE_WINDOWS)
    return Ended(trace, number, reason)


def count_skipped(recorder: Recorder | None, reason: Skipped) -> None:
    """One more window that was left out."""
    if recorder is not None:
        _count(recorder, _METRIC[reason])


def _count(recorder: Recorder, metric: names.Metric) -> None:
    if not recorder.is_retired:
        recorder.cells.add(metric.name, metric.unit, 1)
