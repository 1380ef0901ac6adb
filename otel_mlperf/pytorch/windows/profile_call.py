"""``torch_profile()``: profiling of a block of the program, or by a schedule.

A block is recorded whole; a schedule selects steps of the run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from otel_mlperf.pytorch.windows.run_windows import windows_of
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.settings.load_config import load_config
from otel_mlperf.settings.profile_schedule import parse_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from otel_mlperf.pytorch.windows.capture import Capture
    from otel_mlperf.pytorch.windows.run_windows import RunWindows
    from otel_mlperf.pytorch.windows.window_plan import WindowPlan
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.settings.profile_schedule import Schedule

_NO_RUN = "torch_profile() with a schedule requires an active run"


class Profiling:
    """Result of ``torch_profile()``: a context manager, or ``start()`` and ``stop()``."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        self._pid = os.getpid()

    @property
    def paths(self) -> list[Path]:
        """Paths of the traces that were written so far."""
        return list(self._paths)

    def start(self) -> None:
        """Start profiling; never raises."""
        try:
            self._safely(self._start)
        except BaseException:  # raised by the program
            self._drop()
            raise

    @at_once
    def stop(self) -> None:
        """Stop profiling, and write the trace; a second call does nothing."""
        try:
            if self._pid == os.getpid():  # not in a forked child, which inherits the object
                self._safely(self._stop)
        except BaseException:
            self._drop()
            raise

    def __enter__(self) -> Any:
        self.start()
        return self

    @at_once
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except BaseException:
            self._drop()
            raise

    def _start(self) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        raise NotImplementedError

    def _drop(self) -> None:
        raise NotImplementedError

    def _safely(self, call: Any) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - profiling never raises into the program
            internal_error(error)


class BlockProfiling(Profiling):
    """Profiling of a block: one window from start to stop, with or without a run."""

    def __init__(self, schedule: Schedule, folder: str | os.PathLike[str] | None) -> None:
        super().__init__()
        self._schedule = schedule
        self._folder = Path(folder) if folder is not None else None
        self._recorder: Recorder | None = None
        self._capture: Capture | None = None

    def _start(self) -> None:
        from otel_mlperf.pytorch.windows.capture import Capture
        from otel_mlperf.pytorch.windows.window_end import count_skipped, seen_steps_of

        if self._capture is not None:
            warn_once("torch_profile(): already started, this call has no effect")
            return
        self._pid, self._recorder = os.getpid(), active()
        self._capture = capture = Capture(self._schedule, self._recorder, self.stop)
        reason = capture.prepare() or capture.start()
        if reason is not None:
            self._capture = None
            count_skipped(self._recorder, reason)
        elif self._recorder is not None:
            seen_steps_of(self._recorder).begin()

    def _stop(self) -> None:
        capture, self._capture = self._capture, None
        if capture is None:
            return
        try:
            self._write(capture)
        except BaseException:
            self._end_unwritten(capture)
            raise

    def _drop(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None and self._pid == os.getpid():
            self._end_unwritten(capture)

    def _end_unwritten(self, capture: Capture) -> None:
        from otel_mlperf.pytorch.windows.window_end import drop_window

        drop_window(self._recorder, capture)

    def _write(self, capture: Capture) -> None:
        recorder = self._recorder
        if recorder is None:
            from otel_mlperf.pytorch.windows.trace_file import folder_without_run, name_without_run

            trace = capture.finish(self._folder or folder_without_run(), name_without_run())
        else:
            from otel_mlperf.pytorch.windows.window_end import count_skipped, end_window

            trace, _, reason = end_window(recorder, capture, folder=self._folder)
            if trace is None:
                count_skipped(recorder, reason)
        if trace is not None:
            self._paths.append(trace)
            self._report_path(trace)

    def _report_path(self, trace: Path) -> None:
        from otel_mlperf.pytorch.windows.trace_file import report_path

        if self._recorder is None:
            report_path(trace, console=load_config().console)
        elif self._folder is not None:
            report_path(trace, console=self._recorder.config.console)


class ScheduledProfiling(Profiling):
    """Profiling by a schedule, over the steps of the run that is active when profiling starts."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule
        self._windows: RunWindows | None = None
        self._plan: WindowPlan | None = None

    @property
    def paths(self) -> list[Path]:
        """Paths of the traces that were written so far."""
        return list(self._plan.traces) if self._plan is not None else []

    def _start(self) -> None:
        from otel_mlperf.pytorch.windows.window_plan import WindowPlan

        recorder = active()
        windows = windows_of(recorder) if recorder is not None else None
        if recorder is None or windows is None:
            warn_once(_NO_RUN)
            return
        self._pid = os.getpid()
        self._windows, self._plan = windows, WindowPlan(recorder, self._schedule)
        windows.add(self._plan)

    def _stop(self) -> None:
        if self._windows is not None and self._plan is not None:
            self._windows.remove(self._plan)

    def _drop(self) -> None:
        if self._pid == os.getpid():
            self._stop()


def torch_profile(  # noqa: PLR0913 - the words of a schedule, and those of torch.profiler
    *,
    wait: int | None = None,
    warmup: int | None = None,
    active: int | None = None,
    repeat: int | None = None,
    skip_first: int | None = None,
    every: Literal["run", "epoch"] | None = None,
    unit: Literal["step", "epoch"] | None = None,
    phase: str | None = None,
    record_shapes: bool = False,
    profile_memory: bool = False,
    with_stack: bool = False,
    with_flops: bool = False,
    activities: Sequence[str] = (),
    events: int = 200_000,
    folder: str | os.PathLike[str] | None = None,
) -> Profiling:
    """Profile with ``torch.profiler``, as a block or between ``start()`` and ``stop()``.

    The trace, which Perfetto and TensorBoard can open too, is stored in the run's folder under
    ``profiles/``. Its events become spans under the sections that caused them. The trace of a block
    without a run is stored in ``otel-runs/profiles/``; its path is printed on stderr. ``.paths`` of
    the result lists all written traces, and ``otel-mlperf kernels PATH`` shows one. While another
    profiler runs in the process, nothing is profiled, and the window is counted as skipped.

    Without any of the first eight arguments, the whole block is one window, with or without a run.
    With any of them, windows follow the steps of the active run: ``wait`` steps are skipped, the
    profiler warms up for ``warmup`` steps, and ``active`` steps are recorded; this is repeated
    ``repeat`` times.

    Args:
        wait: steps skipped before each window (default: 10).
        warmup: following steps whose events are discarded (default: 1).
        active: steps that are recorded (default: 3).
        repeat: number of windows (default: 1); 0: unlimited.
        skip_first: steps skipped before everything else (default: 0).
        every: ``epoch`` restarts the schedule in each epoch.
        unit: ``epoch``: ``wait``, ``active`` and ``skip_first`` count epochs. Each recorded epoch
            is a window of its own, after ``warmup`` steps, up to its end or first validation.
        phase: phase whose steps count (default: ``train``).
        record_shapes: also record shapes of the operators' inputs.
        profile_memory: also record allocations.
        with_stack: also record Python functions.
        with_flops: must be False, because torch writes no FLOPs into its trace; see ``model_work``.
        activities: ``cpu``, ``cuda``, … (default: all that torch supports on this machine).
        events: a window ends with the step in which it reaches about this many events.
        folder: folder for the trace of a block, whose events then do not become spans.

    Raises:
        ConfigError: an argument is invalid.
    """
    given = {
        "wait": wait, "warmup": warmup, "active": active, "repeat": repeat,
        "skip_first": skip_first, "every": every, "unit": unit, "phase": phase,
    }  # fmt: skip
    steps = {name: value for name, value in given.items() if value is not None}
    options = {
        "record_shapes": record_shapes, "profile_memory": profile_memory, "with_stack": with_stack,
        "activities": activities, "events": events,
    }  # fmt: skip
    if with_flops:
        options["with_flops"] = True  # ``parse_schedule`` refuses it
    schedule = parse_schedule(steps | options)
    assert schedule is not None
    return ScheduledProfiling(schedule) if steps else BlockProfiling(schedule, folder)
