"""Requests for profiler windows to running ranks, and the results of these requests.

A request is passed to a process through its journal in shared memory. It must therefore be made on
the node of the process, by the same user. The process accepts it before its next step.
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


class PendingRequest(NamedTuple):
    """Request to one rank for a profiler window of ``steps`` steps, which is not answered yet."""

    rank: int
    control: WindowControl
    request: int
    steps: int


class StoppedRank(NamedTuple):
    """Result of the request to one rank to end its profiler window."""

    rank: int
    words: str
    """Result as a text for the user."""
    asked: PendingRequest | None = None
    """Request whose window is ending, for callers that wait for the trace; None: no open window."""


def find_ranks(run: RunFolder, ranks: list[int]) -> dict[int, Path]:
    """Return the journals of ``ranks`` on this node by rank; an empty list means all ranks.

    Raises:
        NotRunning: no process of the run is running on this node.
        UsageError: one of ``ranks`` is not running on this node.
        JournalError: the journals belong to another user, or are invalid.
    """
    running = _journals(run)
    if not running:
        raise NotRunning(
            f"profiling run {run.short_id}: no process of the run is active on this node; the run "
            "has ended, or runs on another node"
        )
    missing = [rank for rank in ranks if rank not in running]
    if missing:
        raise UsageError(
            f"profile: rank {missing[0]} of run {run.short_id} does not run on this node; ranks on "
            f"this node: {', '.join(map(str, running))}"
        )
    return {rank: path for rank, path in running.items() if not ranks or rank in ranks}


def request_windows(journals: dict[int, Path], steps: int) -> list[PendingRequest]:
    """Request a profiler window from each rank; if one request fails, all are withdrawn.

    Raises:
        JournalError: a rank cannot be reached.
        NotRunning: a rank has not imported torch, so there is nothing to profile.
    """
    requested: list[PendingRequest] = []
    try:
        for rank, path in journals.items():
            requested.append(_request_window(rank, path, steps))
    except OtelMlperfError:  # windows on only some of the ranks would not be useful
        for each in requested:
            each.control.withdraw(each.request)
        raise
    return requested


def stop_ranks(journals: dict[int, Path]) -> Iterator[StoppedRank]:
    """End each rank's requested window and yield the result; after a failure, earlier stops remain.

    Raises:
        JournalError: a process has ended, or does not check for requests.
    """
    return (_stop(rank, WindowControl(path)) for rank, path in journals.items())


def _journals(run: RunFolder) -> dict[int, Path]:
    """Return the journals of running ranks by rank.

    A forked child's journal is used only if its rank has no other journal.
    """
    journals: dict[int, Path] = {}
    for path in sorted(journals_in(*_folders(run))):
        rank = rank_of(path)
        try:
            control = WindowControl(path)
        except JournalError:
            if path.exists():
                raise
            continue  # the process has just ended, and the agent has removed its journal
        if rank is not None and control.is_running and (control.listens or rank not in journals):
            journals[rank] = path
        control.close()
    return dict(sorted(journals.items()))


def _folders(run: RunFolder) -> list[Path]:
    """Return the folders that may contain journals of the run's owner.

    Raises:
        JournalError: the journals belong to another user.
    """
    owner = run.path.stat().st_uid
    shared, on_disk = map(Path, folders_of_run(run.facts.id, run.path, user=owner))
    if shared.parent.exists() and not os.access(shared.parent, os.R_OK | os.X_OK):
        raise JournalError(
            f"looking for journals in {shared.parent}: they belong to user {owner}; run this "
            "command as that user"
        )
    return [shared, on_disk]


def _request_window(rank: int, path: Path, steps: int) -> PendingRequest:
    control = WindowControl(path)
    if not _has_torch(control.word(Word.PID)):
        raise NotRunning(
            f"requesting a profiler window from rank {rank}: the program has not imported torch, "
            "so there is nothing to profile"
        )
    return PendingRequest(rank, control, control.ask(steps), steps)


def _has_torch(pid: int) -> bool:
    """Return whether a process has loaded torch; True if this cannot be determined."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True


def _stop(rank: int, control: WindowControl) -> StoppedRank:
    waiting = control.waiting
    # Try to withdraw first: a window that has not started does not need to be ended.
    if waiting is not None and control.withdraw(waiting):
        return StoppedRank(rank, "request withdrawn")
    taken = control.stop()
    if taken is None:
        return StoppedRank(rank, "no requested window is open")
    requested = PendingRequest(rank, control, taken, steps_of(taken))
    return StoppedRank(rank, "the window ends with the current step", requested)


def wait_for_trace(run: RunFolder, asked: PendingRequest) -> Path | str:
    """Wait for a rank's window; return its trace file, or a text on why there is none."""
    while (answer := asked.control.answer(asked.request)) is None:
        if not asked.control.is_running:
            return "the process ended before the window was complete"
        time.sleep(_LOOK_EVERY_S)
    outcome, number = answer
    if outcome is not Answer.WRITTEN:
        return f"no trace: {_REASONS[outcome]}"
    return _trace(run, asked.control.word(Word.PID), number)


def take_back(asked: PendingRequest) -> Literal["taken back", "goes on", "ended"]:
    """Withdraw a request unless its window has started; return the state of the request."""
    if asked.control.withdraw(asked.request):
        return "taken back"
    return "goes on" if asked.control.answer(asked.request) is None else "ended"


def has_agent(asked: Iterable[PendingRequest]) -> bool:
    """Return whether an agent has read a journal of these ranks, and so will read the traces."""
    return any(each.control.word(Word.BEAT) for each in asked)


def wait_until_read(run: RunFolder, traces: Iterable[Path], *, is_hopeful: bool) -> set[str]:
    """Wait until the agent has read traces, so that the command ``kernels`` shows them.

    Args:
        run: Run of the traces.
        traces: Trace files that were written.
        is_hopeful: Whether there is an agent; otherwise the function returns immediately.

    Returns:
        The names of traces that were not read within a minute.
    """
    from otel_mlperf.analysis.profiles.recorded_windows import find_unread
    from otel_mlperf.store.table_reader import Store

    names = {trace.name for trace in traces}
    end = time.monotonic() + _READING_S * is_hopeful
    while names:
        # A new store each time, since an open store does not contain later rows.
        names &= set(find_unread(run, Store(run.path)))
        if not names or time.monotonic() >= end:
            break
        time.sleep(_READ_EVERY_S)
    return names


def _trace(run: RunFolder, pid: int, number: int) -> Path:
    """Return the trace file of window ``number`` of process ``pid``, or else the traces' folder."""
    for path in sorted((run.path / FOLDER).glob(f"*.{number}{WINDOW_SUFFIX}")):
        window = read_window(path)
        if (window.pid, window.number) == (pid, number):
            return path.parent / window.trace
    return run.path / FOLDER
