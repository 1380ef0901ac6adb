"""``otel-mlperf profile``: how does somebody look into a job that runs?

The request goes through the journal in shared memory, so the command works on the node and for the
user that the process runs on and for. The process takes it before its next step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from otel_mlperf.cli.commands import RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.errors import JournalError, NotRunning, UsageError
from otel_mlperf.ids import safe_name
from otel_mlperf.journal.control import MOST_STEPS, Answer, Control
from otel_mlperf.journal.folder import SHARED_MEMORY, SUFFIX
from otel_mlperf.journal.layout import Word
from otel_mlperf.journal.window import FOLDER, WINDOW_SUFFIX, read_window

if TYPE_CHECKING:
    from otel_mlperf.store.runs import RunFolder

_LOOK_EVERY_S: Final = 0.05
_SAID: Final = {
    Answer.BUSY: "another profiler was running in the process",
    Answer.NO_TORCH: "the program has not imported torch",
    Answer.MEMORY: "windows before have made the process grow too far",
    Answer.CUDA_GRAPHS: "CUDA graphs crash under a profiler with CUDA before 12.6",
    Answer.FAILED: "the trace could not be recorded or written; the program's stderr says why",
}


class _Asked(NamedTuple):
    """One rank that was asked."""

    rank: int
    control: Control
    request: int


def profile(
    run: RunArgument = "latest",
    steps: Annotated[
        int, typer.Option("--steps", min=1, max=MOST_STEPS, help="How many steps to record.")
    ] = 3,
    rank: Annotated[
        list[int] | None, typer.Option("--rank", help="Only this rank; may be given again.")
    ] = None,
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait", help="Wait for the traces; by default where it is a terminal."
        ),
    ] = None,
) -> None:
    """Profile the next steps of a run that is going on.

    One step goes by with the profiler on, the steps after it are recorded. Without --rank every
    rank on this node is asked.
    """
    from otel_mlperf.store.runs import find_run

    found = find_run(run)
    journals = _chosen(found, rank or [])
    asked = [_ask(number, path, steps) for number, path in journals.items()]
    for one in asked:
        print(f"rank {one.rank}: asked for {steps} {'step' if steps == 1 else 'steps'} after the "
              "next one")  # fmt: skip
    print(f"traces go to {found.path / FOLDER}")
    if wait if wait is not None else sys.stdout.isatty():
        _wait(found, asked)


def _chosen(run: RunFolder, ranks: list[int]) -> dict[int, Path]:
    """The journals of the ranks that are meant, by rank."""
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


def _journals(run: RunFolder) -> dict[int, Path]:
    """The journals of ranks that are running; a rank's own before those of forked children."""
    found: dict[int, Path] = {}
    for path in sorted(path for folder in _folders(run) for path in folder.glob(f"*{SUFFIX}")):
        rank = path.name.partition("-")[0]
        control = Control(path)
        if rank.isdecimal() and control.is_running and (control.listens or int(rank) not in found):
            found[int(rank)] = path
        control.close()
    return dict(sorted(found.items()))


def _folders(run: RunFolder) -> list[Path]:
    """Where journals of the run may lie: in shared memory, or in its folder."""
    owner = run.path.stat().st_uid
    shared = Path(SHARED_MEMORY, f"otel_mlperf-{owner}")
    if shared.exists() and not os.access(shared, os.R_OK | os.X_OK):
        raise JournalError(
            f"looking for journals in {shared}: they belong to user {owner}, who alone can ask"
        )
    return [shared / safe_name(run.facts.id, 128), run.path / "journals"]


def _ask(rank: int, path: Path, steps: int) -> _Asked:
    control = Control(path)
    if not _has_torch(control.word(Word.PID)):
        raise NotRunning(
            f"asking rank {rank} for a profiler window: its program has not imported torch, so "
            "there is nothing to profile"
        )
    return _Asked(rank, control, control.ask(steps))


def _has_torch(pid: int) -> bool:
    """Whether a process has loaded torch; True where it cannot be told."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True


def _wait(run: RunFolder, asked: list[_Asked]) -> None:
    """Says what became of each request; Ctrl-C takes back those that nobody has taken."""
    try:
        lost = [one.rank for one in asked if not _await(run, one)]
    except KeyboardInterrupt:
        for one in asked:
            if one.control.withdraw(one.request):
                print(f"rank {one.rank}: taken back", file=sys.stderr)
        raise
    if lost:
        raise NotRunning(f"profile: no trace of rank {', '.join(map(str, lost))}")


def _await(run: RunFolder, one: _Asked) -> bool:
    """Waits for one rank; whether there is a trace."""
    while (answer := one.control.answer(one.request)) is None:
        if not one.control.is_running:
            print(f"rank {one.rank}: its process ended before the window was complete")
            return False
        time.sleep(_LOOK_EVERY_S)
    what, number = answer
    if what is not Answer.WRITTEN:
        print(f"rank {one.rank}: no trace: {_SAID[what]}")
        return False
    print(f"rank {one.rank}: {_trace(run, one.control.word(Word.PID), number)}")
    return True


def _trace(run: RunFolder, pid: int, number: int) -> Path:
    """The trace of a process's window."""
    for path in sorted((run.path / FOLDER).glob(f"*.{number}{WINDOW_SUFFIX}")):
        window = read_window(path)
        if (window.pid, window.number) == (pid, number):
            return path.parent / window.trace
    return run.path / FOLDER
