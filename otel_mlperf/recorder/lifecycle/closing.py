"""End of a run: closing of its sections, wait for the agent, and display of the summary.

First the rows of open sections are written, with the error if there is one, and the journal is
closed. Then the process waits:

* until the agent has read all rows, at most 1.5 s;
* for the printed summary, at most 5 s; a late one is replaced by a line with the command;
* as the first process of a container, with which the agent ends: until all data is stored, at most
  10 s.

In a notebook, the front end would show output of a child process in whichever cell is running then.
Therefore the cell immediately displays a line that the run has ended. A thread replaces the line by
the summary, identified by a display id, when all data is stored.
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
    """Line in a notebook's cell, which is replaced by the summary that a child process creates."""

    def __init__(self, folder: str, command: Sequence[str], environ: dict[str, str]) -> None:
        """Display the line, and start the thread that replaces it.

        ``command`` prints the summary as JSON: texts by media type.

        Raises:
            Exception: the notebook cannot display the line, or no thread can be started.
        """
        self._name, self._command, self._environ = os.path.basename(folder), command, environ
        # Imported by name from the notebook: this package does not require IPython.
        show: Any = importlib.import_module("IPython.display").display
        line = f"{self._name} has ended: the summary appears here when all data is stored"
        self._line = show({"text/plain": line}, raw=True, display_id=True)
        # A thread, outside the context of the cell: tools that run notebooks from scripts attribute
        # output to the cell that is running, not to the cell of the line.
        self._thread = threading.Thread(target=self._fill, name="otel_mlperf summary", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for the summary; a later summary is displayed as well."""
        self._thread.join(timeout_s)

    def _fill(self) -> None:
        try:
            answer = subprocess.run(
                self._command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=self._environ,
                process_group=0, check=False,
            ).stdout  # fmt: skip
            fallback = f"{self._name} has ended: otel-mlperf summary {self._name}"
            made = msgspec.json.decode(answer) if answer else {"text/plain": fallback}
            self._line.update(made, raw=True)
        except Exception as error:  # noqa: BLE001 - nothing above a thread
            internal_error(error)


def open_cell(folder: str, command: Sequence[str], environ: dict[str, str]) -> ClosingCell | None:
    """Display the line for a run's summary; return None outside notebooks or if that fails."""
    if not is_notebook() or not _is_kernel():
        return None
    try:
        return ClosingCell(folder, command, environ)
    except Exception as error:  # noqa: BLE001 - a kernel that ends: the summary is printed instead
        internal_error(error)
        return None


def _is_kernel() -> bool:
    """Return whether this process is the kernel, not a fork of it, which cannot display output."""
    shell = sys.modules["IPython"].get_ipython()
    session = getattr(getattr(shell, "kernel", None), "session", None)
    return bool(getattr(session, "pid", os.getpid()) == os.getpid())


PATIENCE_S = 1.5
"""Maximum wait at the end of a run; together with Python's own exit about two seconds."""
CONTAINER_PATIENCE_S = 10.0
"""Maximum wait in the first process of a container, after which unstored data may be lost."""
SUMMARY_PATIENCE_S = 5.0
"""Maximum wait if a summary is printed."""
_ROOM_S = 1.0
"""Maximum wait for room in a full ring, as a part of ``PATIENCE_S``."""
_POLL_S = 0.01
_ENDED_WITH_RUN = frozenset({names.EPOCH, names.STEP})
"""Categories of sections that the end of a run closes without a warning: their loop was left."""
_LEFT_OPEN = (
    "sections were still open at the end of the run and are recorded up to that time: %s; "
    "close each section: with om.span(...)"
)
_MAX_NAMES = 5
_TERMINATE_S = 0.5
"""Grace period after SIGTERM for a summary that is being printed at the deadline."""


def patience_s() -> float:
    """Return the maximum wait in seconds at the end of a run in this process."""
    return CONTAINER_PATIENCE_S if _is_first_process() else PATIENCE_S


def _is_first_process() -> bool:
    """Return whether this is pid 1 of a container: the kernel ends all other processes with it."""
    return os.getpid() == 1


def close_sections(
    recorder: Recorder, run: SectionContext, words: list[str] | None, result: Any
) -> None:
    """End all open steps and sections, the innermost first and the run last.

    ``words`` describes the exception by which the run failed; None if it did not fail. ``result``
    contains the run's results.
    """
    # Write the header first: if the process is killed after it, the agent still reads when and how
    # the run ended.
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
            left_open += [name] if current.at and category not in _ENDED_WITH_RUN else []
            recorder.sections.close(current, now, words)
        current = context_above(current)
    if left_open and words is None:
        warn_once(_LEFT_OPEN, ", ".join(left_open[:_MAX_NAMES]))
    for section in reversed(recorder.parents.outer):
        if section is not run:
            recorder.sections.close(section, now, words)
    # After the reachable sections, which have attributes that the open table does not contain.
    _close_unreachable(recorder, run, now, words)
    recorder.sections.leave(run)
    recorder.sections.close(run, now, words, **({"a": result} if result else {}))


def _await_room(recorder: Recorder) -> None:
    """If rows have been dropped, wait until the ring has room for the rows of the run's end."""
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
    """Close sections of other threads and tasks, which are known only from the open table."""
    journal, shape = recorder.journal, recorder.journal.shape
    table = range(shape.table_at, shape.table_at + shape.open * OPEN_BYTES, OPEN_BYTES)
    open_at = [at for at in table if journal.words[at >> 3] not in (0, run.sid)]
    ended = _ended(journal, {journal.words[at >> 3] for at in open_at}) if open_at else set()
    for at in open_at:
        span, parent, root, track, start, name = OPEN.unpack_from(journal.buffer, at)
        if name > MAX_ENTRIES or start > now:
            continue  # a damaged entry: it stays in the table, and the agent counts it
        if span not in ended:
            flags = int(Kind.SECTION)
            if words is not None:
                flags |= Flag.ERROR
                if journal.payload(span, {"e": [*words[:2], ""]}):
                    flags |= Flag.HAS_PAYLOAD
            journal.put(start, now, span, parent, root, track, name, flags)
        journal.words[at >> 3] = 0


def _ended(journal: Journal, spans: set[int]) -> set[int]:
    """Return those of ``spans`` that have ended, i.e. whose final row is in the ring."""
    words, first, end = journal.words, journal.shape.ring_at >> 3, journal.shape.size >> 3
    rows = zip(words[first + 2 : end : 8], words[first + 6 : end : 8], strict=True)
    ends = (Kind.SECTION, Kind.CANCEL)
    return {span for span, flags in rows if span in spans and flags >> 32 & 15 in ends}


def await_end(recorder: Recorder, watch: AgentWatch | None, head: int, deadline: float) -> None:
    """Wait until the agent has logged all rows up to slot ``head``, and the summary is printed.

    ``deadline`` is the monotonic time in seconds until which the agent is waited for.

    Raises:
        KeyboardInterrupt: the user interrupted the wait; the summary is not printed.
    """
    if recorder.config.agent == "none":
        return
    if watch is not None:
        watch.ensure()
        if watch.is_impossible:
            return  # without an agent, nothing is stored or summarised
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
    # After the child has ended, because it reads the journal, too.
    if is_over and (watch is None or watch.thread is None):
        recorder.journal.release()


def _is_agent_done(
    recorder: Recorder, watch: AgentWatch | None, head: int, deadline: float
) -> bool:
    journal = recorder.journal
    thread = None if watch is None else watch.thread
    if thread is None and not _is_first_process():
        # An agent in another process has written the rows to its log, and stores them later.
        return _is_in_time(lambda: journal.words[Word.DURABLE] >= head, deadline)
    # The agent ends with this process: wait until it has stored the rows and removed the journal.
    # Data that is not sent by the deadline is sent by ``doctor --recover``.
    is_stored = _is_in_time(lambda: not os.path.exists(journal.path), deadline)
    if thread is not None and recorder.meta.world_size == 1:
        thread.join(max(0.0, deadline - time.monotonic()))
    return is_stored


def _is_in_time(condition: Callable[[], bool], deadline: float) -> bool:
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _show_summary(
    run_folder: str, journal_path: str, head: int
) -> subprocess.Popen[bytes] | ClosingCell | None:
    """Start the child that creates the run's summary when all rows up to ``head`` are stored.

    The child prints the summary on stderr; in a notebook, the cell displays it. The result is None
    if no child can be started.
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
            process_group=0,  # otherwise Ctrl-C would print the child's traceback, too
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        internal_error(error)
        return None


def _await_child(child: subprocess.Popen[bytes] | ClosingCell | None, deadline: float) -> None:
    timeout_s = max(0.0, deadline - time.monotonic())
    if isinstance(child, subprocess.Popen):
        _end_by(child, timeout_s)
    elif child is not None:
        child.wait(timeout_s)


def _end_by(child: subprocess.Popen[bytes], timeout_s: float) -> None:
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        child.terminate()
        try:
            child.wait(_TERMINATE_S)
        except subprocess.TimeoutExpired:
            # The child is blocked while printing and continues on its own, or a busy machine has
            # not ended it yet. Set a return code: otherwise Python warns of a child without a wait.
            child.returncode = 0 if _ignores_terminate(child.pid) else -signal.SIGTERM


def _ignores_terminate(pid: int) -> bool:
    """Return whether a child ignores SIGTERM, i.e. has started to print the summary."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            ignored = next(line for line in file if line.startswith("SigIgn:"))
    except (OSError, StopIteration):
        return False
    return bool(int(ignored.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def _name_command(child: subprocess.Popen[bytes] | ClosingCell | None, run_folder: str) -> None:
    if isinstance(child, subprocess.Popen) and child.returncode:
        import shlex

        say(f"the summary was not ready in time: otel-mlperf summary {shlex.quote(run_folder)}")


def summary_environ() -> dict[str, str]:
    """Return the environment of a child that creates a summary.

    It disables recording, and its ``PYTHONPATH`` includes this package.
    """
    environ = dict(os.environ)
    environ["OTEL_SDK_DISABLED"] = "true"
    environ.pop("PYTHONINSPECT", None)  # would open a prompt when the child ends
    paths = [HOME, *filter(None, [environ.get("PYTHONPATH")])]
    environ["PYTHONPATH"] = os.pathsep.join(paths)
    return environ
