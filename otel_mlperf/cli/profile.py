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

from otel_mlperf.cli.arguments import RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.errors import JournalError, NotRunning, OtelMlperfError, UsageError
from otel_mlperf.journal.control import MOST_STEPS, Answer, Control, steps_of
from otel_mlperf.journal.journal_folder import folders_of_run, journals_in, rank_of
from otel_mlperf.journal.layout import Word
from otel_mlperf.journal.window import FOLDER, WINDOW_SUFFIX, read_window
from otel_mlperf.report.quantities import plural

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder

_LOOK_EVERY_S: Final = 0.05
_READ_EVERY_S: Final = 0.25
_READING_S: Final = 60.0
"""For how long --wait waits until the agent has read a trace."""
_SAID: Final = {
    Answer.BUSY: "another profiler was running in the process",
    Answer.NO_TORCH: "the program has not imported torch",
    Answer.MEMORY: "windows before have made the process grow too far",
    Answer.CUDA_GRAPHS: "CUDA graphs crash under a profiler with CUDA before 12.6",
    Answer.FAILED: "the trace could not be recorded or written; the program's stderr says why",
    Answer.NOT_REACHED: "it was ended before it had recorded a step",
}


class _Asked(NamedTuple):
    """One rank that was asked."""

    rank: int
    control: Control
    request: int
    steps: int


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
            "--wait/--no-wait",
            help="Wait until the traces are read; by default where it is a terminal.",
        ),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the window that was asked for, and keep it.")
    ] = False,
) -> None:
    """Profile the next steps of a run that is going on.

    One step goes by with the profiler on, the steps after it are recorded. Without --rank every
    rank on this node is asked. Ctrl-C while it waits takes back what no process has begun.
    """
    from otel_mlperf.store.run_folders import find_run

    found = find_run(run)
    journals = _chosen(found, rank or [])
    asked = _stop_all(journals) if stop else _ask_all(journals, steps)
    if not stop:
        print(f"traces go to {found.path / FOLDER}", flush=True)
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
    for path in sorted(journals_in(*_folders(run))):
        rank = rank_of(path)
        try:
            control = Control(path)
        except JournalError:
            if path.exists():
                raise
            continue  # its process has just ended
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


def _ask_all(journals: dict[int, Path], steps: int) -> list[_Asked]:
    """Asks every rank, or none."""
    asked: list[_Asked] = []
    try:
        for rank, path in journals.items():
            asked.append(_ask(rank, path, steps))
    except OtelMlperfError:
        for one in asked:
            one.control.withdraw(one.request)
        raise
    for one in asked:
        print(f"rank {one.rank}: asked for {plural(steps, 'step')} after the next one")
    return asked


def _ask(rank: int, path: Path, steps: int) -> _Asked:
    control = Control(path)
    if not _has_torch(control.word(Word.PID)):
        raise NotRunning(
            f"asking rank {rank} for a profiler window: its program has not imported torch, so "
            "there is nothing to profile"
        )
    return _Asked(rank, control, control.ask(steps), steps)


def _stop_all(journals: dict[int, Path]) -> list[_Asked]:
    """Ends what was asked for; the windows that end now."""
    ending: list[_Asked] = []
    for rank, path in journals.items():
        control = Control(path)
        waiting, taken = control.waiting, None
        if waiting is not None and control.withdraw(waiting):
            print(f"rank {rank}: taken back")
        elif (taken := control.stop()) is None:
            print(f"rank {rank}: no window that was asked for is open")
        else:
            print(f"rank {rank}: its window ends with the step that is open")
            ending.append(_Asked(rank, control, taken, steps_of(taken)))
    return ending


def _has_torch(pid: int) -> bool:
    """Whether a process has loaded torch; True where it cannot be told."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True


def _wait(run: RunFolder, asked: list[_Asked]) -> None:
    """Says what became of each request; Ctrl-C takes back those that nobody has taken."""
    try:
        found = {one.rank: _await(run, one) for one in asked}
    except KeyboardInterrupt:
        for one in asked:
            _give_up(run, one)
        raise
    traces = {rank: trace for rank, trace in found.items() if trace is not None}
    _await_reading(run, asked, traces)
    if lost := [rank for rank in found if rank not in traces]:
        raise NotRunning(f"profile: no trace of rank {', '.join(map(str, lost))}")


def _give_up(run: RunFolder, one: _Asked) -> None:
    if one.control.withdraw(one.request):
        print(f"rank {one.rank}: taken back", file=sys.stderr)
    elif one.control.answer(one.request) is None:
        print(
            f"rank {one.rank}: its window of {plural(one.steps, 'step')} goes on; "
            f"otel-mlperf profile {run.short_id} --stop ends it",
            file=sys.stderr,
        )


def _await(run: RunFolder, one: _Asked) -> Path | None:
    """Waits for one rank; its trace, if there is one."""
    while (answer := one.control.answer(one.request)) is None:
        if not one.control.is_running:
            print(f"rank {one.rank}: its process ended before the window was complete")
            return None
        time.sleep(_LOOK_EVERY_S)
    what, number = answer
    if what is not Answer.WRITTEN:
        print(f"rank {one.rank}: no trace: {_SAID[what]}")
        return None
    trace = _trace(run, one.control.word(Word.PID), number)
    print(f"rank {one.rank}: {trace}", flush=True)
    return trace


def _await_reading(run: RunFolder, asked: list[_Asked], traces: dict[int, Path]) -> None:
    """Waits until the agent has read them: from then on ``kernels`` shows them."""
    from otel_mlperf.analysis.profiles.recorded_windows import find_unread
    from otel_mlperf.store.table_reader import Store

    names = {trace.name for trace in traces.values()}
    has_agent = any(one.control.word(Word.BEAT) for one in asked)
    end = time.monotonic() + _READING_S * has_agent
    while names:
        names &= set(find_unread(run, Store(run.path)))
        if not names or time.monotonic() >= end:
            break
        time.sleep(_READ_EVERY_S)
    if names:
        how = "still being read" if has_agent else "read by no agent"
        print(f"{plural(len(names), 'trace')} {how}: otel-mlperf kernels {run.short_id} shows "
              "them when they are")  # fmt: skip


def _trace(run: RunFolder, pid: int, number: int) -> Path:
    """The trace of a process's window."""
    for path in sorted((run.path / FOLDER).glob(f"*.{number}{WINDOW_SUFFIX}")):
        window = read_window(path)
        if (window.pid, window.number) == (pid, number):
            return path.parent / window.trace
    return run.path / FOLDER
