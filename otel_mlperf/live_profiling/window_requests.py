"""Which ranks of a run can be asked for a profiler window, and how are they asked or stopped?

The request goes through the journal in shared memory, so it works on the node and for the user that
the process runs on and for. The process takes it before its next step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.errors import JournalError, NotRunning, OtelMlperfError, UsageError
from otel_mlperf.journal.control import Control, steps_of
from otel_mlperf.journal.journal_folder import folders_of_run, journals_in, rank_of
from otel_mlperf.journal.layout import Word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.store.run_folders import RunFolder


class AskedRank(NamedTuple):
    """One rank that was asked."""

    rank: int
    control: Control
    request: int
    steps: int


class StoppedRank(NamedTuple):
    """What came of asking one rank to stop."""

    rank: int
    words: str
    """For people."""
    asked: AskedRank | None = None
    """Of a window that is ending, to wait for."""


def find_ranks(run: RunFolder, ranks: list[int]) -> dict[int, Path]:
    """The journals of the ranks that are meant, or of all that run on this node; by rank.

    Raises:
        NotRunning: no process of the run is here.
        UsageError: one of those ranks is not.
        JournalError: journals are somebody else's, or none.
    """
    here = _journals(run)
    if not here:
        raise NotRunning(
            f"asking run {run.short_id} for a profiler window: no process of it runs on this node; "
            "it has ended, or runs elsewhere"
        )
    missing = [rank for rank in ranks if rank not in here]
    if missing:
        raise UsageError(
            f"profile: rank {missing[0]} of run {run.short_id} does not run on this node; here are "
            f"{', '.join(map(str, here))}"
        )
    return {rank: path for rank, path in here.items() if not ranks or rank in ranks}


def ask_ranks(journals: dict[int, Path], steps: int) -> list[AskedRank]:
    """Asks every rank, or none.

    Raises:
        JournalError: one cannot be asked; the requests to the others are taken back.
        NotRunning: there is nothing to profile in one.
    """
    asked: list[AskedRank] = []
    try:
        for rank, path in journals.items():
            asked.append(_ask(rank, path, steps))
    except OtelMlperfError:  # a window of some ranks only is not what was asked for
        for each in asked:
            each.control.withdraw(each.request)
        raise
    return asked


def stop_ranks(journals: dict[int, Path]) -> Iterator[StoppedRank]:
    """Ends what was asked for, rank after rank: those before one that cannot be asked are ended.

    Raises:
        JournalError: a process has ended, or does not look.
    """
    return (_stop(rank, Control(path)) for rank, path in journals.items())


def _journals(run: RunFolder) -> dict[int, Path]:
    """The journals of ranks that are running; a rank's own before those of forked children."""
    found: dict[int, Path] = {}
    for path in sorted(journals_in(*_folders(run))):
        rank = rank_of(path)
        try:
            control = Control(path)
        except JournalError:
            if path.exists():
                raise
            continue  # its process has just ended, and the agent has removed the journal
        if rank is not None and control.is_running and (control.listens or rank not in found):
            found[rank] = path
        control.close()
    return dict(sorted(found.items()))


def _folders(run: RunFolder) -> list[Path]:
    """Where journals of the run may lie."""
    owner = run.path.stat().st_uid
    shared, on_disk = map(Path, folders_of_run(run.facts.id, run.path, user=owner))
    if shared.parent.exists() and not os.access(shared.parent, os.R_OK | os.X_OK):
        raise JournalError(
            f"looking for journals in {shared.parent}: they belong to user {owner}, who alone can "
            "ask"
        )
    return [shared, on_disk]


def _ask(rank: int, path: Path, steps: int) -> AskedRank:
    control = Control(path)
    if not _has_torch(control.word(Word.PID)):
        raise NotRunning(
            f"asking rank {rank} for a profiler window: its program has not imported torch, so "
            "there is nothing to profile"
        )
    return AskedRank(rank, control, control.ask(steps), steps)


def _has_torch(pid: int) -> bool:
    """Whether a process has loaded torch; True where it cannot be told."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True


def _stop(rank: int, control: Control) -> StoppedRank:
    waiting = control.waiting
    # Taking back comes first: a window that has not begun need not end.
    if waiting is not None and control.withdraw(waiting):
        return StoppedRank(rank, "taken back")
    taken = control.stop()
    if taken is None:
        return StoppedRank(rank, "no window that was asked for is open")
    asked = AskedRank(rank, control, taken, steps_of(taken))
    return StoppedRank(rank, "its window ends with the step that is open", asked)
