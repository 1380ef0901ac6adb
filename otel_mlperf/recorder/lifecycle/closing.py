"""What happens when a run ends, however it ends?

Sections that are still open get their row, with the error if there is one; the journal is closed;
then the process waits, 2 s at most, until the agent has everything and the summary is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from otel_mlperf.isolated_process import HOME
from otel_mlperf.journal.layout import OPEN, OPEN_BYTES, Flag, Kind, Word
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.sections.section_context import CURRENT, SectionContext, context_above

if TYPE_CHECKING:
    from otel_mlperf.journal.journal_writer import Journal
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

PATIENCE_S = 2.0
"""What a run's end may add to the program's."""
_ROOM_S = 1.0
"""Of it, for room in a full ring."""
_POLL_S = 0.01


def close_sections(
    recorder: Recorder, run: SectionContext, words: list[str] | None, result: Any
) -> None:
    """Ends everything that is open: the caller's sections from inside out, the run last."""
    # The header first: killed from here on, the agent still knows when and how the run ended.
    now, header = time.monotonic_ns(), recorder.journal.words
    header[Word.END_TIME], header[Word.FAILED] = now, int(words is not None)
    _await_room(recorder)
    recorder.stepping.end_all(now, words)
    current: Any = CURRENT.get()
    while isinstance(current, SectionContext) and current is not run:
        if current.recording is recorder:
            recorder.sections.close(current, now, words)
        current = context_above(current)
    for section in reversed(recorder.parents.outer):
        if section is not run:
            recorder.sections.close(section, now, words)
    # After those that can be reached: they have attributes and errors that the table has not.
    _close_unreachable(recorder, run, now, words)
    recorder.sections.leave(run)
    recorder.sections.close(run, now, words, **({"a": result} if result else {}))


def _await_room(recorder: Recorder) -> None:
    """Where rows were dropped for want of room, those that say how the run ended wait for some."""
    journal, deadline = recorder.journal, time.monotonic() + _ROOM_S
    if recorder.config.agent == "none" or not journal.words[Word.LOST_RING_FULL]:
        return
    while journal.words[Word.TAIL] + journal.shape.rows <= journal.lease.end:
        if time.monotonic() >= deadline:
            return
        time.sleep(_POLL_S)


def _close_unreachable(
    recorder: Recorder, run: SectionContext, now: int, words: list[str] | None
) -> None:
    """Sections of other threads and tasks: what is known of them is in the open table."""
    journal, shape = recorder.journal, recorder.journal.shape
    table = range(shape.table_at, shape.table_at + shape.open * OPEN_BYTES, OPEN_BYTES)
    left = [at for at in table if journal.words[at >> 3] not in (0, run.sid)]
    ended = _ended(journal, {journal.words[at >> 3] for at in left}) if left else set()
    for at in left:
        span, parent, root, track, start, name = OPEN.unpack_from(journal.buffer, at)
        if span not in ended:
            flags = int(Kind.SECTION)
            if words is not None:
                flags |= Flag.ERROR
                if journal.payload(span, {"e": [*words[:2], ""]}):
                    flags |= Flag.HAS_PAYLOAD
            journal.put(start, now, span, parent, root, track, name, flags)
        journal.words[at >> 3] = 0


def _ended(journal: Journal, spans: set[int]) -> set[int]:
    """Which of them have a row: their threads were about to clear their entries."""
    words, first, end = journal.words, journal.shape.ring_at >> 3, journal.shape.size >> 3
    rows = zip(words[first + 2 : end : 8], words[first + 6 : end : 8], strict=True)
    ends = (Kind.SECTION, Kind.CANCEL)
    return {span for span, flags in rows if span in spans and flags >> 32 & 15 in ends}


def wait_durable(recorder: Recorder, head: int, deadline: float) -> bool:
    """Waits until the agent has written everything up to ``head`` to its outbox."""
    words = recorder.journal.words
    while words[Word.DURABLE] < head:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def wait_stored(recorder: Recorder, deadline: float) -> bool:
    """Waits until an agent in a thread has stored the journal and removed it: it dies with us."""
    while os.path.exists(recorder.journal.path):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def print_summary(run_folder: str, journal_path: str, head: int) -> subprocess.Popen[bytes] | None:
    """Starts the child that prints the run's summary on stderr once everything is stored."""
    command = [sys.executable, "-P", "-m", "otel_mlperf", "summary", run_folder]
    command += ["--closing", "--wait-stored", f"{journal_path}:{head}"]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=summary_environ()
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        internal_error(error)
        return None


def await_child(child: subprocess.Popen[bytes] | None, deadline: float) -> None:
    """Waits for the summary; past the deadline it is left to itself."""
    if child is None:
        return
    try:
        child.wait(max(0.0, deadline - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.returncode = 0  # it goes on alone: no ResourceWarning for that


def summary_environ() -> dict[str, str]:
    """The environment of a child that reads: it records nothing and finds this package."""
    environ = dict(os.environ)
    environ["OTEL_SDK_DISABLED"] = "true"
    paths = [HOME, *filter(None, [environ.get("PYTHONPATH")])]
    environ["PYTHONPATH"] = os.pathsep.join(paths)
    return environ
