"""``torch_profile()``: profiling of a block of the program, or by a schedule.

A block is recorded whole; a schedule selects steps of the run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from otel_mlperf.load_config import load_config
from otel_mlperf.profile_schedule import parse_schedule
from otel_mlperf.pytorch.windows.run_windows import windows_of
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.faults import internal_error, say_once
from otel_mlperf.recorder.core.interrupts import at_once

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from otel_mlperf.profile_schedule import Schedule
    from otel_mlperf.pytorch.windows.capture import Capture
    from otel_mlperf.pytorch.windows.run_windows import RunWindows
    from otel_mlperf.pytorch.windows.window_plan import WindowPlan
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_NO_RUN = "torch_profile() with a schedule needs an active run, whose steps it counts"


class Profiling:
    """What ``torch_profile()`` returns: a block, or ``start()`` and ``stop()``."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        self._pid = os.getpid()

    @property
    def paths(self) -> list[Path]:
        """The traces that were written so far."""
        return list(self._paths)

    def start(self) -> None:
        """Begins; never raises."""
        try:
            self._safely(self._start)
        except BaseException:  # the program's
            self._drop()
            raise

    @at_once
    def stop(self) -> None:
        """Ends, and writes what was recorded; does nothing the second time."""
        try:
            if self._pid == os.getpid():  # what a fork inherits is not its own
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
        """Leaves nothing that goes on, after an interrupt."""
        raise NotImplementedError

    def _safely(self, call: Any) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - profiling never raises into the program
            internal_error(error)


class BlockProfiling(Profiling):
    """Everything between start and stop is one window, in a run or without one."""

    def __init__(self, schedule: Schedule, folder: str | os.PathLike[str] | None) -> None:
        super().__init__()
        self._schedule = schedule
        self._folder = Path(folder) if folder is not None else None
        self._recorder: Recorder | None = None
        self._capture: Capture | None = None

    def _start(self) -> None:
        from otel_mlperf.pytorch.windows.capture import Capture
        from otel_mlperf.pytorch.windows.seen_steps import seen_steps_of
        from otel_mlperf.pytorch.windows.window_end import count_skipped

        if self._capture is not None:
            say_once("torch_profile(): it was started before, and goes on")
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
            self._tell(trace)

    def _tell(self, trace: Path) -> None:
        """Says where a trace is that is no window of a run."""
        from otel_mlperf.pytorch.windows.trace_file import tell_place

        if self._recorder is None:
            tell_place(trace, console=load_config().console)
        elif self._folder is not None:
            tell_place(trace, console=self._recorder.config.console)


class ScheduledProfiling(Profiling):
    """Windows over the steps of the run that is active at the start."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule
        self._windows: RunWindows | None = None
        self._plan: WindowPlan | None = None

    @property
    def paths(self) -> list[Path]:
        """The traces that were written so far."""
        return list(self._plan.traces) if self._plan is not None else []

    def _start(self) -> None:
        from otel_mlperf.pytorch.windows.window_plan import WindowPlan

        recorder = active()
        windows = windows_of(recorder) if recorder is not None else None
        if recorder is None or windows is None:
            say_once(_NO_RUN)
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
    """Profiles with ``torch.profiler``, as a block or between ``start()`` and ``stop()``.

    The trace, which Perfetto and TensorBoard open too, lies in the run's folder under
    ``profiles/``; its events become spans under the sections that caused them. Of a block without a
    run it lies in ``otel-runs/profiles/``, which stderr says; ``.paths`` of what is returned lists
    all that were written, and ``otel-mlperf kernels PATH`` shows one. While another
    profiler runs in the process nothing is profiled, which is counted.

    Without one of the first eight arguments the whole block is one window, in a run or without one.
    With one of them windows follow the steps of the active run: ``wait`` steps are left alone,
    ``warmup`` steps go by with the profiler on, ``active`` steps are recorded, and that ``repeat``
    times.

    Args:
        wait: steps left alone before each window; 10.
        warmup: steps after them whose events are thrown away; 1.
        active: steps that are recorded; 3.
        repeat: how many windows; 1. 0: on and on.
        skip_first: steps before everything else; 0.
        every: ``epoch`` begins anew in each epoch.
        unit: ``epoch``: ``wait``, ``active`` and ``skip_first`` count epochs. Each that is recorded
            is a window of its own, behind ``warmup`` steps, up to its end or first validation.
        phase: whose steps count; ``train``.
        record_shapes: shapes of the operators' inputs too.
        profile_memory: allocations too.
        with_stack: Python functions too.
        with_flops: refused: torch writes no FLOPs into its trace; see ``model_work``.
        activities: ``cpu``, ``cuda``, …; all that torch offers here.
        events: a window ends with the step in which it came to about so many events.
        folder: where the trace of a block goes instead; none of its events become spans.

    Raises:
        ConfigError: an argument is wrong.
    """
    given = {
        "wait": wait, "warmup": warmup, "active": active, "repeat": repeat,
        "skip_first": skip_first, "every": every, "unit": unit, "phase": phase,
    }  # fmt: skip
    steps = {name: value for name, value in given.items() if value is not None}
    what = {
        "record_shapes": record_shapes, "profile_memory": profile_memory, "with_stack": with_stack,
        "activities": activities, "events": events,
    }  # fmt: skip
    if with_flops:
        what["with_flops"] = True  # refused there
    schedule = parse_schedule(steps | what)
    assert schedule is not None
    return ScheduledProfiling(schedule) if steps else BlockProfiling(schedule, folder)
