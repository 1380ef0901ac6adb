"""The end of a run, however it ends, and the closing text in a terminal or a notebook.

Sections that are still open get their row, with the error if there is one, and the journal is
closed. Then the process waits, at most 1.5 s, until the agent has everything. Where a summary is
printed, the process waits for it, at most 5 s: after that one line with the command is printed
instead. The first process of a container waits at most 10 s until all is stored: the agent ends
with it.

In a notebook, output of a child process ends up in whatever cell runs by then. So the cell reports
immediately that the run has ended, and that line becomes the summary when all of it is stored:
mostly before the cell has ended, else later, from a thread. A front end finds the line by its id.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf import names
from otel_mlperf.journal.layout import MAX_ENTRIES, OPEN, OPEN_BYTES, Flag, Kind, Word
from otel_mlperf.own_processes import HOME
from otel_mlperf.recorder.core.faults import internal_error, say, warn_once
from otel_mlperf.recorder.lifecycle.run_identity import is_notebook
from otel_mlperf.recorder.sections.section_context import CURRENT, SectionContext, context_above

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_mlperf.journal.journal_writer import Journal
    from otel_mlperf.recorder.lifecycle.agent_launch import AgentWatch
    from otel_mlperf.recorder.lifecycle.recorder import Recorder


class ClosingCell:
    """The line in a notebook's cell, and the child process that makes its summary."""

    def __init__(self, folder: str, command: Sequence[str], environ: dict[str, str]) -> None:
        """Show the line; ``command`` prints the summary in JSON: texts by media type.

        Raises:
            Exception: the notebook shows nothing, or no thread can be started.
        """
        self._name, self._command, self._environ = os.path.basename(folder), command, environ
        # The notebook's own IPython: this package does not require one.
        show: Any = importlib.import_module("IPython.display").display
        line = f"{self._name} has ended: the summary appears here when all data is stored"
        self._line = show({"text/plain": line}, raw=True, display_id=True)
        # Not in the context of the cell: tools that run a notebook from a script attribute output
        # to the cell that runs by then, whatever line it is about.
        self._thread = threading.Thread(target=self._fill, name="otel_mlperf summary", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until the summary is shown, or the timeout: then it is shown when it is ready."""
        self._thread.join(timeout_s)

    def _fill(self) -> None:
        try:
            answer = subprocess.run(
                self._command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=self._environ,
                process_group=0, check=False,
            ).stdout  # fmt: skip
            told = f"{self._name} has ended: otel-mlperf summary {self._name}"
            made = msgspec.json.decode(answer) if answer else {"text/plain": told}
            self._line.update(made, raw=True)
        except Exception as error:  # noqa: BLE001 - nothing above a thread
            internal_error(error)


def open_cell(folder: str, command: Sequence[str], environ: dict[str, str]) -> ClosingCell | None:
    """Return the place for the summary of the run in ``folder``; None outside notebooks."""
    if not is_notebook() or not _is_kernel():
        return None
    try:
        return ClosingCell(folder, command, environ)
    except Exception as error:  # noqa: BLE001 - a kernel that ends: the summary is printed instead
        internal_error(error)
        return None


def _is_kernel() -> bool:
    """Return whether this is the kernel itself: a fork of it cannot show anything."""
    shell = sys.modules["IPython"].get_ipython()
    session = getattr(getattr(shell, "kernel", None), "session", None)
    return bool(getattr(session, "pid", os.getpid()) == os.getpid())


PATIENCE_S = 1.5
"""Longest wait at a run's end: with Python's own exit, two seconds of the program."""
CONTAINER_PATIENCE_S = 10.0
"""Longest wait in the first process of a container, where data not stored by then may be lost."""
SUMMARY_PATIENCE_S = 5.0
"""Longest wait if a summary is printed."""
_ROOM_S = 1.0
"""Part of the first wait, for room in a full ring."""
_POLL_S = 0.01
_ENDED_HERE = frozenset({names.EPOCH, names.STEP})
"""Categories of sections that a run's end closes without a warning: their loop was left."""
_LEFT_OPEN = (
    "sections were still open at the end of the run and are recorded up to that time: %s; "
    "close each section: with om.span(...)"
)
_MOST_NAMES = 5
_TERMINATE_S = 0.5
"""Grace period for a summary that is being printed at the deadline."""


def patience_s() -> float:
    """Return how long the end of a run may wait in this process."""
    return CONTAINER_PATIENCE_S if _is_first_process() else PATIENCE_S


def _is_first_process() -> bool:
    """Return whether the kernel ends all processes of this container with this one."""
    return os.getpid() == 1


def close_sections(
    recorder: Recorder, run: SectionContext, words: list[str] | None, result: Any
) -> None:
    """End everything that is open: the caller's sections from inside out, the run last."""
    # The header first: after a kill from here on, the agent still knows when and how the run ended.
    now = time.monotonic_ns()
    recorder.journal.say(Word.END_TIME, now)
    recorder.journal.say(Word.FAILED, int(words is not None))
    _await_room(recorder)
    recorder.sections.finish_rest(now)
    recorder.stepping.end_all(now, words)
    current: Any = CURRENT.get()
    left_open: list[str] = []
    while isinstance(current, SectionContext) and current is not run:
        if current.adds_up:
            current.__exit__(None, None, None)
        elif current.recording is recorder:
            name, category = recorder.registry.about(current.entry)
            left_open += [name] if current.at and category not in _ENDED_HERE else []
            recorder.sections.close(current, now, words)
        current = context_above(current)
    if left_open and words is None:
        warn_once(_LEFT_OPEN, ", ".join(left_open[:_MOST_NAMES]))
    for section in reversed(recorder.parents.outer):
        if section is not run:
            recorder.sections.close(section, now, words)
    # After the reachable sections: these have attributes and errors that the table lacks.
    _close_unreachable(recorder, run, now, words)
    recorder.sections.leave(run)
    recorder.sections.close(run, now, words, **({"a": result} if result else {}))


def _await_room(recorder: Recorder) -> None:
    """Wait for room after dropped rows, because the rows of the run's end need some."""
    journal, deadline = recorder.journal, time.monotonic() + _ROOM_S
    if recorder.config.agent == "none" or not journal.said[Word.LOST_RING_FULL]:
        return
    while journal.words[Word.TAIL] + journal.shape.rows <= journal.lease.end:
        if time.monotonic() >= deadline:
            return
        time.sleep(_POLL_S)


def _close_unreachable(
    recorder: Recorder, run: SectionContext, now: int, words: list[str] | None
) -> None:
    """Close sections of other threads and tasks by the data in the open table."""
    journal, shape = recorder.journal, recorder.journal.shape
    table = range(shape.table_at, shape.table_at + shape.open * OPEN_BYTES, OPEN_BYTES)
    left = [at for at in table if journal.words[at >> 3] not in (0, run.sid)]
    ended = _ended(journal, {journal.words[at >> 3] for at in left}) if left else set()
    for at in left:
        span, parent, root, track, start, name = OPEN.unpack_from(journal.buffer, at)
        if name > MAX_ENTRIES or start > now:
            continue  # the entry was overwritten: it stays there, and the agent counts it
        if span not in ended:
            flags = int(Kind.SECTION)
            if words is not None:
                flags |= Flag.ERROR
                if journal.payload(span, {"e": [*words[:2], ""]}):
                    flags |= Flag.HAS_PAYLOAD
            journal.put(start, now, span, parent, root, track, name, flags)
        journal.words[at >> 3] = 0


def _ended(journal: Journal, spans: set[int]) -> set[int]:
    """Return the spans that have a row: their threads were about to clear their entries."""
    words, first, end = journal.words, journal.shape.ring_at >> 3, journal.shape.size >> 3
    rows = zip(words[first + 2 : end : 8], words[first + 6 : end : 8], strict=True)
    ends = (Kind.SECTION, Kind.CANCEL)
    return {span for span, flags in rows if span in spans and flags >> 32 & 15 in ends}


def await_end(recorder: Recorder, watch: AgentWatch | None, head: int, deadline: float) -> None:
    """Wait until everything up to ``head`` is safe and the summary is printed.

    Raises:
        KeyboardInterrupt: the user interrupted; the summary is not printed any more.
    """
    if recorder.config.agent == "none":
        return
    if watch is not None:
        watch.ensure()
        if watch.is_impossible:
            return  # no process stores anything that could be waited for, or shown
    child = None
    if recorder.config.console and recorder.shows_summary:
        child = _show_summary(recorder.meta.run_folder, recorder.journal.path, head)
    try:
        is_over = _is_agent_done(recorder, watch, head, deadline)
        _await_child(child, deadline + SUMMARY_PATIENCE_S - PATIENCE_S)
    except KeyboardInterrupt:
        if isinstance(child, subprocess.Popen):
            child.terminate()
            child.wait()
        raise
    _name_command(child, recorder.meta.run_folder)
    # After the child, which reads the journal too.
    if is_over and (watch is None or watch.thread is None):
        recorder.journal.release()


def _is_agent_done(
    recorder: Recorder, watch: AgentWatch | None, head: int, deadline: float
) -> bool:
    journal = recorder.journal
    thread = None if watch is None else watch.thread
    if thread is None and not _is_first_process():
        # An agent in another process stores later what it has logged by now.
        return _is_in_time(lambda: journal.words[Word.DURABLE] >= head, deadline)
    # The agent ends with this process: it must have stored and removed the journal. Data that it
    # has not sent by the deadline waits for recover.
    is_stored = _is_in_time(lambda: not os.path.exists(journal.path), deadline)
    if thread is not None and recorder.meta.world_size == 1:
        thread.join(max(0.0, deadline - time.monotonic()))
    return is_stored


def _is_in_time(is_so: Callable[[], bool], deadline: float) -> bool:
    while not is_so():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _show_summary(
    run_folder: str, journal_path: str, head: int
) -> subprocess.Popen[bytes] | ClosingCell | None:
    """Start the child that makes the run's summary once everything is stored.

    It prints the summary on stderr, or the cell of a notebook shows it.
    """
    command = [sys.executable, "-P", "-m", "otel_mlperf", "summary", run_folder]
    command += ["--wait-stored", f"{journal_path}:{head}"]
    environ = summary_environ()
    if cell := open_cell(run_folder, [*command, "--cell"], environ):
        return cell
    try:
        return subprocess.Popen(
            [*command, "--closing"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environ,
            process_group=0,  # Ctrl-C would print its traceback in addition to the program's
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        internal_error(error)
        return None


def _await_child(child: subprocess.Popen[bytes] | ClosingCell | None, deadline: float) -> None:
    """Wait for the summary. A late one is not printed: something else is shown by then."""
    left_s = max(0.0, deadline - time.monotonic())
    if isinstance(child, subprocess.Popen):
        _end_by(child, left_s)
    elif child is not None:
        child.wait(left_s)


def _end_by(child: subprocess.Popen[bytes], left_s: float) -> None:
    try:
        child.wait(left_s)
    except subprocess.TimeoutExpired:
        child.terminate()
        try:
            child.wait(_TERMINATE_S)
        except subprocess.TimeoutExpired:
            # It blocks while printing: it continues alone. Or a busy machine has not ended it yet.
            # Set a code in either case: else Python warns of a child without a wait.
            child.returncode = 0 if _ignores_terminate(child.pid) else -signal.SIGTERM


def _ignores_terminate(pid: int) -> bool:
    """Return whether the summary has started to print: since then it ignores SIGTERM."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            ignored = next(line for line in file if line.startswith("SigIgn:"))
    except (OSError, StopIteration):
        return False
    return bool(int(ignored.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def _name_command(child: subprocess.Popen[bytes] | ClosingCell | None, run_folder: str) -> None:
    """Print the command that shows a summary which was not printed."""
    if isinstance(child, subprocess.Popen) and child.returncode:
        import shlex

        say(f"the summary was not ready in time: otel-mlperf summary {shlex.quote(run_folder)}")


def summary_environ() -> dict[str, str]:
    """Return the environment of a child that reads: it records nothing and finds this package."""
    environ = dict(os.environ)
    environ["OTEL_SDK_DISABLED"] = "true"
    environ.pop("PYTHONINSPECT", None)  # it would open a prompt after the program has ended
    paths = [HOME, *filter(None, [environ.get("PYTHONPATH")])]
    environ["PYTHONPATH"] = os.pathsep.join(paths)
    return environ
