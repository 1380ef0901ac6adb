"""Requests for profiler windows to running ranks, and their results.

The request is passed through the journal in shared memory. It therefore works only on the node, and
for the user, of the process. The process accepts it before its next step.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from otel_mlperf.errors import JournalError, NotRunning, OtelMlperfError, UsageError
from otel_mlperf.journal.journal_folder import folders_of_run, journals_in, rank_of
from otel_mlperf.journal.layout import Word
from otel_mlperf.journal.profiler_windows import (
    FOLDER,
    WINDOW_SUFFIX,
    Answer,
    WindowControl,
    read_window,
    steps_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_mlperf.store.run_folders import RunFolder

_LOOK_EVERY_S: Final = 0.05
_READ_EVERY_S: Final = 0.25
_READING_S: Final = 60.0
_REASONS: Final = {
    Answer.BUSY: "another profiler was running in the process",
    Answer.NO_TORCH: "the program has not imported torch",
    Answer.MEMORY: "earlier windows have increased the process memory too much",
    Answer.CUDA_GRAPHS: "CUDA graphs crash under a profiler with CUDA before 12.6",
    Answer.FAILED: "the trace could not be recorded or written; see the program's stderr",
    Answer.NOT_REACHED: "the window was ended before it had recorded a step",
}


class AskedRank(NamedTuple):
    """Rank with a pending request."""

    rank: int
    control: WindowControl
    request: int
    steps: int


class StoppedRank(NamedTuple):
    """Result of a stop request to one rank."""

    rank: int
    words: str
    """Text for people."""
    asked: AskedRank | None = None
    """The request of a window that is ending, to wait for."""


def find_ranks(run: RunFolder, ranks: list[int]) -> dict[int, Path]:
    """Return the journals of the given ranks, or of all that run on this node; by rank.

    Raises:
        NotRunning: no process of the run is here.
        UsageError: one of those ranks is not.
        JournalError: journals are another user's, or invalid.
    """
    here = _journals(run)
    if not here:
        raise NotRunning(
            f"profiling run {run.short_id}: no process of the run is active on this node; the run "
            "has ended, or runs on another node"
        )
    missing = [rank for rank in ranks if rank not in here]
    if missing:
        raise UsageError(
            f"profile: rank {missing[0]} of run {run.short_id} does not run on this node; ranks on "
            f"this node: {', '.join(map(str, here))}"
        )
    return {rank: path for rank, path in here.items() if not ranks or rank in ranks}


def ask_ranks(journals: dict[int, Path], steps: int) -> list[AskedRank]:
    """Request a window from every rank, or from none.

    Raises:
        JournalError: a rank cannot be reached; the other requests are withdrawn.
        NotRunning: there is nothing to profile in one.
    """
    asked: list[AskedRank] = []
    try:
        for rank, path in journals.items():
            asked.append(_ask(rank, path, steps))
    except OtelMlperfError:  # a window of only some ranks was not requested
        for each in asked:
            each.control.withdraw(each.request)
        raise
    return asked


def stop_ranks(journals: dict[int, Path]) -> Iterator[StoppedRank]:
    """End the requested windows, rank by rank; a failure does not undo earlier ranks.

    Raises:
        JournalError: a process has ended, or does not look.
    """
    return (_stop(rank, WindowControl(path)) for rank, path in journals.items())


def _journals(run: RunFolder) -> dict[int, Path]:
    """Return the journals of running ranks; a rank's own before those of forked children."""
    journals: dict[int, Path] = {}
    for path in sorted(journals_in(*_folders(run))):
        rank = rank_of(path)
        try:
            control = WindowControl(path)
        except JournalError:
            if path.exists():
                raise
            continue  # its process has just ended, and the agent has removed the journal
        if rank is not None and control.is_running and (control.listens or rank not in journals):
            journals[rank] = path
        control.close()
    return dict(sorted(journals.items()))


def _folders(run: RunFolder) -> list[Path]:
    """Return the folders that may contain journals of the run."""
    owner = run.path.stat().st_uid
    shared, on_disk = map(Path, folders_of_run(run.facts.id, run.path, user=owner))
    if shared.parent.exists() and not os.access(shared.parent, os.R_OK | os.X_OK):
        raise JournalError(
            f"looking for journals in {shared.parent}: they belong to user {owner}; run this "
            "command as that user"
        )
    return [shared, on_disk]


def _ask(rank: int, path: Path, steps: int) -> AskedRank:
    control = WindowControl(path)
    if not _has_torch(control.word(Word.PID)):
        raise NotRunning(
            f"requesting a profiler window from rank {rank}: the program has not imported torch, "
            "so there is nothing to profile"
        )
    return AskedRank(rank, control, control.ask(steps), steps)


def _has_torch(pid: int) -> bool:
    """Return whether a process has loaded torch; True if that is unknown."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True


def _stop(rank: int, control: WindowControl) -> StoppedRank:
    waiting = control.waiting
    # Withdrawal comes first: a window that has not started need not end.
    if waiting is not None and control.withdraw(waiting):
        return StoppedRank(rank, "request withdrawn")
    taken = control.stop()
    if taken is None:
        return StoppedRank(rank, "no requested window is open")
    asked = AskedRank(rank, control, taken, steps_of(taken))
    return StoppedRank(rank, "the window ends with the current step", asked)


def wait_for_trace(run: RunFolder, asked: AskedRank) -> Path | str:
    """Wait for one rank's window; return its trace, or a text about why there is none."""
    while (answer := asked.control.answer(asked.request)) is None:
        if not asked.control.is_running:
            return "the process ended before the window was complete"
        time.sleep(_LOOK_EVERY_S)
    what, number = answer
    if what is not Answer.WRITTEN:
        return f"no trace: {_REASONS[what]}"
    return _trace(run, asked.control.word(Word.PID), number)


def take_back(asked: AskedRank) -> Literal["taken back", "goes on", "ended"]:
    """Withdraw a request that its process has not started; return the resulting state."""
    if asked.control.withdraw(asked.request):
        return "taken back"
    return "goes on" if asked.control.answer(asked.request) is None else "ended"


def has_agent(asked: Iterable[AskedRank]) -> bool:
    """Return whether an agent has read any of their journals.

    Only then will it read their traces.
    """
    return any(each.control.word(Word.BEAT) for each in asked)


def wait_until_read(run: RunFolder, traces: Iterable[Path], *, is_hopeful: bool) -> set[str]:
    """Wait until the agent has read traces: from then on ``kernels`` shows them.

    Args:
        run: of the traces.
        traces: that were written.
        is_hopeful: whether there is an agent; otherwise nothing is waited for.

    Returns:
        The names of those that it has not read after a minute.
    """
    from otel_mlperf.analysis.profiles.recorded_windows import find_unread
    from otel_mlperf.store.table_reader import Store

    names = {trace.name for trace in traces}
    end = time.monotonic() + _READING_S * is_hopeful
    while names:
        # A new store each time: one that is open shows what there was when it was opened.
        names &= set(find_unread(run, Store(run.path)))
        if not names or time.monotonic() >= end:
            break
        time.sleep(_READ_EVERY_S)
    return names


def _trace(run: RunFolder, pid: int, number: int) -> Path:
    """Return the trace of a process's window; the folder of all traces if it is not found."""
    for path in sorted((run.path / FOLDER).glob(f"*.{number}{WINDOW_SUFFIX}")):
        window = read_window(path)
        if (window.pid, window.number) == (pid, number):
            return path.parent / window.trace
    return run.path / FOLDER
