"""Profiler windows: description files next to the traces, and control by other processes.

A window's trace is ``<name>.pt.trace.json``, its description ``<name>.window.json``. The
description is written last and atomically: if it exists, the trace is complete and can be
converted.

A command stores a request in the header word CONTROL of the journal: the number of steps, and a
random number that makes the request unique. The process checks the word before each step. The
process accepts a request that differs from the last accepted request (word TAKEN), so that each
request is accepted once, and stores the outcome in ANSWERED and ANSWER. A request for zero steps
ends the open window; the process does not accept it, but restores the last accepted request.
Commands exclude each other by a lock on the file or its folder, which the process does not use.
"""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_folder import rank_of
from otel_mlperf.journal.layout import HEADER_BYTES, MAGIC, WORD, Word, is_closed
from otel_mlperf.journal.meta import has_owner
from otel_mlperf.portability import CLOEXEC, IS_PORTABLE, NOFOLLOW
from otel_mlperf.whole_file import read_regular, write_whole

if TYPE_CHECKING:
    from pathlib import Path

TRACE_SUFFIX = ".pt.trace.json"
WINDOW_SUFFIX = ".window.json"
FOLDER = "profiles"
"""Folder of profiler windows, inside a run folder."""


class WindowStep(msgspec.Struct, frozen=True):
    """Step in a profiler window."""

    phase: str
    n: int
    number: int
    span: str
    """Span id, 16 hexadecimal digits."""
    trace: str
    """Trace id, 32 hexadecimal digits."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one profiler window of one process."""

    run_id: str
    restart: int
    rank: int
    world_size: int
    pid: int
    number: int
    """Number of the profiler window in its process, from 0."""
    trace: str
    """Name of the trace file in the same folder."""
    parent: str
    """Span id of the section that exported the window. It is the parent of events outside steps."""
    anchor: tuple[int, int] = (0, 0)
    """Unix and monotonic ns of the recorder's clock anchor, which converts all section times."""
    steps: list[WindowStep]
    start: tuple[int, int]
    """Unix and monotonic ns at the start of the window, read together."""
    end: tuple[int, int]
    activities: list[str]
    """Recorded activities of the PyTorch profiler: ``cpu``, ``cuda``, …"""
    is_cut: bool = False
    """Whether the window ended early, e.g. at the limit of events or because of another
    profiler."""
    problem: str = ""
    """Reason why events are missing; empty if none are missing."""


def write_window(folder: Path, window: Window) -> Path:
    """Write the description of a finished profiler window atomically; return the file's path."""
    place = folder / (window.trace.removesuffix(TRACE_SUFFIX) + WINDOW_SUFFIX)
    write_whole(place, msgspec.json.encode(window))
    return place


def read_window(path: Path) -> Window:
    """Read the description of a profiler window.

    Raises:
        JournalError: the file cannot be read or is not a valid description.
    """
    try:
        window = msgspec.json.decode(read_regular(path), type=Window)
        # Reject paths, because another user may own the run folder and point outside of it.
        if window.trace != os.path.basename(window.trace) or window.trace in ("", ".", ".."):
            raise ValueError(f"{window.trace!r} is not the name of a file in the same folder")
        return window
    except (OSError, ValueError) as error:  # invalid JSON, schema or encoding
        raise JournalError(
            f"reading the profiler window {path}: {error}; delete the file to skip this window"
        ) from error


with suppress(ImportError):  # Windows, where nothing is recorded
    import fcntl
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_STEPS: Final = 10_000
_STEPS_BITS: Final = 16
_ANSWER_BITS: Final = 8


class Answer(IntEnum):
    """Outcome of a request for a profiler window."""

    WRITTEN = 1
    BUSY = 2
    NO_TORCH = 3
    MEMORY = 4
    CUDA_GRAPHS = 5
    FAILED = 6
    NOT_REACHED = 7
    """The window was ended before it recorded a step."""


def steps_of(request: int) -> int:
    """Return the number of steps that a request contains, from 1 to MAX_STEPS."""
    return min(max(request & ((1 << _STEPS_BITS) - 1), 1), MAX_STEPS)


def is_stop(request: int) -> bool:
    """Return whether a request ends the open profiler window."""
    return not request & ((1 << _STEPS_BITS) - 1)


def answer_word(answer: Answer, number: int) -> int:
    """Return an answer and the number of the written window, encoded as one word."""
    return number << _ANSWER_BITS | answer


def parse_answer(word: int) -> tuple[Answer, int]:
    """Return the answer and the window's number that a word encodes."""
    return Answer(word & ((1 << _ANSWER_BITS) - 1)), word >> _ANSWER_BITS


class WindowControl:
    """Control of profiler windows by a command, through the header words of one journal.

    Raises:
        JournalError: the file is not a journal, or the caller may not write to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | CLOEXEC | NOFOLLOW)
        except OSError as error:
            raise JournalError(
                f"requesting a profiler window through {path}: {error.strerror}; run this command "
                "as the user who runs the program"
            ) from error
        size = os.fstat(self._fd).st_size
        is_long = size >= HEADER_BYTES and not size % WORD
        self._map = mmap.mmap(self._fd, 0) if is_long else None
        # Words are read and written by single stores, because the process uses them concurrently.
        self._words = memoryview(self._map or bytes(HEADER_BYTES)).cast("Q")
        if self.word(Word.MAGIC) != MAGIC:
            self.close()
            raise JournalError(
                f"requesting a profiler window through {path}: the file is not a journal"
            )

    def ask(self, steps: int) -> int:
        """Request a profiler window of ``steps`` steps; return the request.

        Raises:
            JournalError: the process has ended or does not check for requests, another request is
                pending, or another window is open.
        """
        with self._alone():
            self._check()
            self._words[Word.CONTROL] = request = _new_request(steps)
        return request

    def withdraw(self, request: int) -> bool:
        """Withdraw a request; return False if the process has already accepted it."""
        with self._alone():
            if self.word(Word.CONTROL) == request:
                self._words[Word.CONTROL] = self.word(Word.TAKEN)
        return self.word(Word.TAKEN) != request

    def stop(self) -> int | None:
        """Request the end of the open window; return its request, or None if no window is open.

        Raises:
            JournalError: the process has ended, or does not check for requests.
        """
        with self._alone():
            if trouble := self._absence():
                raise JournalError(f"ending a profiler window of rank {self._rank}: {trouble}")
            taken = self.word(Word.TAKEN)
            if self.word(Word.ANSWERED) == taken:
                return None
            if self.word(Word.CONTROL) == taken:
                self._words[Word.CONTROL] = _new_request(0)
            return taken

    @property
    def waiting(self) -> int | None:
        """The request for a window that the process has not accepted yet; None if there is none."""
        request = self.word(Word.CONTROL)
        return None if request == self.word(Word.TAKEN) or is_stop(request) else request

    def answer(self, request: int) -> tuple[Answer, int] | None:
        """Return outcome and window number of a request; None if there is no outcome yet."""
        if self.word(Word.ANSWERED) != request:
            return None
        return parse_answer(self.word(Word.ANSWER))

    @property
    def listens(self) -> bool:
        """Whether the process checks for requests before each step."""
        return self.word(Word.LISTENS) == 1

    @property
    def is_running(self) -> bool:
        """Whether the process still records its run (see ``has_owner``)."""
        return has_owner(self._fd, self.word(Word.PID)) and not is_closed(self._words)

    def word(self, word: Word) -> int:
        """Return the value of one header word."""
        return int(self._words[word])

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude other commands by a lock, for the duration of the context.

        In portable mode (macOS) the lock is on the folder, because a lock on the file would
        conflict with the lock of the process. Otherwise the lock is on the file, because Linux
        cannot lock folders on shared disks.
        """
        lock = os.open(self._path.parent, os.O_RDONLY | CLOEXEC) if IS_PORTABLE else self._fd
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            if lock != self._fd:
                os.close(lock)

    def close(self) -> None:
        """Close the journal file."""
        self._words.release()
        if self._map is not None:
            self._map.close()
        os.close(self._fd)

    @property
    def _rank(self) -> int | None:
        return rank_of(self._path)

    def _absence(self) -> str:
        if not self.is_running:
            return "the process has ended"
        if not self.listens:
            return (
                "the process does not check for requests: another version of otel-mlperf records it"
            )
        return ""

    def _check(self) -> None:
        trouble, taken, waiting = self._absence(), self.word(Word.TAKEN), self.waiting
        if not trouble and waiting is not None:
            trouble = f"another request, for {_steps(waiting)}, is waiting for the next step"
        elif not trouble and self.word(Word.ANSWERED) != taken:
            trouble = f"a window of {_steps(taken)}, requested earlier, is still open"
        if not trouble:
            return
        remedy = "" if self._absence() else "; wait for this window, or end the window with --stop"
        raise JournalError(
            f"requesting a profiler window from rank {self._rank}: {trouble}{remedy}"
        )


def _new_request(steps: int) -> int:
    return (int.from_bytes(os.urandom(5)) | 1) << _STEPS_BITS | steps


def _steps(request: int) -> str:
    count = steps_of(request)
    return f"{count:,} step{'s' * (count != 1)}"
