"""What became of a profiler window that a rank was asked for, and when can it be looked at?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

from otel_mlperf.journal.control import Answer
from otel_mlperf.journal.layout import Word
from otel_mlperf.journal.window import FOLDER, WINDOW_SUFFIX, read_window

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from otel_mlperf.live_profiling.window_requests import AskedRank
    from otel_mlperf.store.run_folders import RunFolder

_LOOK_EVERY_S: Final = 0.05
_READ_EVERY_S: Final = 0.25
_READING_S: Final = 60.0
_REASONS: Final = {
    Answer.BUSY: "another profiler was running in the process",
    Answer.NO_TORCH: "the program has not imported torch",
    Answer.MEMORY: "windows before have made the process grow too far",
    Answer.CUDA_GRAPHS: "CUDA graphs crash under a profiler with CUDA before 12.6",
    Answer.FAILED: "the trace could not be recorded or written; the program's stderr says why",
    Answer.NOT_REACHED: "it was ended before it had recorded a step",
}


def wait_for_trace(run: RunFolder, asked: AskedRank) -> Path | str:
    """Waits for one rank's window; its trace, or in words why there is none."""
    while (answer := asked.control.answer(asked.request)) is None:
        if not asked.control.is_running:
            return "its process ended before the window was complete"
        time.sleep(_LOOK_EVERY_S)
    what, number = answer
    if what is not Answer.WRITTEN:
        return f"no trace: {_REASONS[what]}"
    return _trace(run, asked.control.word(Word.PID), number)


def take_back(asked: AskedRank) -> Literal["taken back", "goes on", "ended"]:
    """Takes a request back, if its process has not begun; what became of it."""
    if asked.control.withdraw(asked.request):
        return "taken back"
    return "goes on" if asked.control.answer(asked.request) is None else "ended"


def has_agent(asked: Iterable[AskedRank]) -> bool:
    """Whether any of their journals has been read: only then will anybody read their traces."""
    return any(each.control.word(Word.BEAT) for each in asked)


def wait_until_read(run: RunFolder, traces: Iterable[Path], *, is_hopeful: bool) -> set[str]:
    """Waits until the agent has read traces: from then on ``kernels`` shows them.

    Args:
        run: of the traces.
        traces: that were written.
        is_hopeful: whether there is an agent; else nothing is waited for.

    Returns:
        The names of those that it has not read after a minute.
    """
    from otel_mlperf.analysis.profiles.recorded_windows import find_unread
    from otel_mlperf.store.table_reader import Store

    names = {trace.name for trace in traces}
    end = time.monotonic() + _READING_S * is_hopeful
    while names:
        names &= set(find_unread(run, Store(run.path)))
        if not names or time.monotonic() >= end:
            break
        time.sleep(_READ_EVERY_S)
    return names


def _trace(run: RunFolder, pid: int, number: int) -> Path:
    """The trace of a process's window; the folder of all where it is not found."""
    for path in sorted((run.path / FOLDER).glob(f"*.{number}{WINDOW_SUFFIX}")):
        window = read_window(path)
        if (window.pid, window.number) == (pid, number):
            return path.parent / window.trace
    return run.path / FOLDER
