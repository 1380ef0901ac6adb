"""Which steps of a run did a profiler see, and how is its window described to the agent?"""

from __future__ import annotations

import itertools
import os
import weakref
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import ids
from otel_mlperf.journal.layout import Flag

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.recorder.core.recorder import Recorder
    from otel_mlperf.recorder.stepping.step_recording import Step

_MOST_STEPS: Final = 4096
"""Steps that are listed for one window."""
_next_number = itertools.count().__next__
Clocks = tuple[int, int]
"""Unix and monotonic nanoseconds, read together."""


class Profiled:
    """The steps of one run that end while a profiler records, or in which it has recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = weakref.ref(recorder)
        self._is_recording = False
        self._seen: dict[int, tuple[str, int, int]] = {}
        self._still_open: set[int] = set()
        # In front, so that whoever ends a window with a step finds it among those seen.
        recorder.after_step.insert(0, self._ended)

    def begin(self) -> None:
        """A profiler records from now on."""
        recorder = self._recorder()
        if recorder is not None:
            self._seen, self._still_open, self._is_recording = {}, set(), True
            recorder.step_flags |= Flag.PROFILED

    def end(self) -> None:
        """It does no more; steps that are still open were profiled too."""
        recorder = self._recorder()
        if recorder is None or not self._is_recording:
            return
        self._is_recording = False
        opened = recorder.stepping.open
        for step in list(opened.values()):
            self._note(step)
        self._still_open = set(opened)
        if not opened:
            recorder.step_flags &= ~Flag.PROFILED

    def take(self) -> dict[int, tuple[str, int, int]]:
        """Phase, n and number by span id, in the order in which they ended; once."""
        seen, self._seen = self._seen, {}
        return seen

    def _ended(self, step: Step) -> None:
        if self._is_recording:
            self._note(step)
        elif self._still_open:
            recorder = self._recorder()
            assert recorder is not None
            self._still_open &= recorder.stepping.open.keys()
            if not self._still_open:
                recorder.step_flags &= ~Flag.PROFILED

    def _note(self, step: Step) -> None:
        if len(self._seen) < _MOST_STEPS:
            self._seen[step.section.sid] = (step.phase, step.n, step.number)


class Facts(NamedTuple):
    """What is known of a window beside its steps."""

    export_span: int
    """Span id of the section in which the trace was written."""
    start: Clocks
    end: Clocks
    activities: list[str]
    is_cut: bool = False
    problem: str = ""


_of: weakref.WeakKeyDictionary[Recorder, Profiled] = weakref.WeakKeyDictionary()


def profiled_of(recorder: Recorder) -> Profiled:
    """The one of a run."""
    found = _of.get(recorder)
    if found is None:
        found = _of[recorder] = Profiled(recorder)
    return found


def next_number() -> int:
    """The number of the next window of this process, from 0."""
    return _next_number()


def folder_of(recorder: Recorder) -> Path:
    """Where the windows of a run lie."""
    from pathlib import Path

    from otel_mlperf.journal.window import FOLDER

    return Path(recorder.meta.run_folder) / FOLDER


def name_of(recorder: Recorder, number: int) -> str:
    """What a window's files are called: TensorBoard reads a worker and a number from it."""
    meta = recorder.meta
    restart = f"-restart{meta.restart}" if meta.restart else ""
    child = f"-child{meta.pid}" if meta.is_child else ""
    return f"rank{meta.rank}{restart}{child}.{number}"


def describe(recorder: Recorder, trace: Path, number: int, facts: Facts) -> Path:
    """Writes what the agent needs to know of a window whose trace is complete.

    Raises:
        OSError: it cannot be written.
    """
    from otel_mlperf.journal.window import Window, WindowStep, write_window

    meta = recorder.meta
    steps = [
        WindowStep(
            phase,
            n,
            count,
            f"{span:016x}",
            f"{ids.trace_id(meta.run_id, meta.restart, phase, n):032x}",
        )
        for span, (phase, n, count) in profiled_of(recorder).take().items()
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
