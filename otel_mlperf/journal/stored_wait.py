"""Waiting until the agent has stored the rows of processes, and messages about missing rows."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from otel_mlperf.errors import JournalError, UsageError
from otel_mlperf.journal.folder_lock import is_served
from otel_mlperf.journal.journal_folder import ROOM, folders_of_run, journals_in, rank_of
from otel_mlperf.journal.layout import WORD, Word
from otel_mlperf.portability import CLOEXEC, NOFOLLOW

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.journal.journal_reader import JournalReader

PATIENCE_S = 2.0
CELL_PATIENCE_S = 60.0
"""Timeout for use in the background, where no user is blocked."""
_LOOK_EVERY_S = 0.02
_LOADING_NS = 10 * 10**9
"""Time after the creation of a journal in which its agent may still be starting."""


def wait_until_stored(wanted: list[str], patience_s: float = PATIENCE_S) -> list[str]:
    """Wait until the tables contain the rows up to each ``JOURNAL:SLOT``, or until the timeout.

    A journal that does not exist counts as completely stored, because the agent removes stored
    journals. Other ranks of the node, which end at about the same time, are waited for as well.

    Returns:
        A message for each rank with rows that are not stored yet, or that has not ended.
    """
    asked = dict(map(_parse, wanted))
    end = time.monotonic() + patience_s
    while (missing := _missing(asked)) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY_S)
    return missing


def request_tables(*folders: str) -> dict[Path, int]:
    """Request that agents write the tables for the journals in ``folders`` now.

    Returns:
        The monotonic time of the request in ns, by journal.
    """
    at_ns = time.monotonic_ns()
    return {path: at_ns for path in journals_in(*folders) if _request(path, at_ns)}


def wait_for_tables(asked: dict[Path, int], patience_s: float = PATIENCE_S) -> list[str]:
    """Wait until the requested tables are written, or until the timeout.

    ``asked`` is the result of ``request_tables``. Journals without an agent are not waited for,
    unless the agent might still be starting.

    Returns:
        A message for each rank with rows from before the request that are not stored yet.
    """
    end = time.monotonic() + patience_s
    while late := {path: ns for path, ns in asked.items() if not _has_until(path, ns)}:
        if time.monotonic() >= end or not any(map(_is_coming, late)):
            break
        time.sleep(_LOOK_EVERY_S)
    return list(dict.fromkeys(map(_lateness, late)))


def _request(path: Path, at_ns: int) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | CLOEXEC | NOFOLLOW)
    except OSError:  # removed in the meantime, or owned by another user
        return False
    try:
        return os.pwrite(fd, at_ns.to_bytes(WORD, "little"), Word.TABLES_REQUESTED * WORD) == WORD
    finally:
        os.close(fd)


def _has_until(path: Path, at_ns: int) -> bool:
    until_ns = _word(str(path), Word.TABLES_UNTIL)
    return until_ns is None or until_ns >= at_ns


def _is_coming(path: Path) -> bool:
    if is_served(path.parent):
        return True
    if _word(str(path), Word.BEAT):
        return False
    reader = _opened(path)
    if reader is None:
        return False
    made_ns = reader.meta.monotonic_ns
    reader.close()
    return time.monotonic_ns() - made_ns < _LOADING_NS


def _lateness(path: Path) -> str:
    until_ns = _word(str(path), Word.TABLES_UNTIL)
    state = "nothing is stored yet"
    if until_ns:
        state = f"the last {(time.monotonic_ns() - until_ns) / 1e9:.1f} s are not stored yet"
    reason = "" if is_served(path.parent) else "; no agent reads the journal of this rank"
    return f"rank {rank_of(path)}: {state}{reason}"


def _missing(asked: dict[str, int]) -> list[str]:
    behind = {path: left for path, slot in asked.items() if (left := _behind(path, slot))}
    return [
        f"rank {rank_of(path)}: {left:,} of {asked[path]:,} rows are still being stored"
        for path, left in behind.items()
    ] + [f"rank {rank} has not ended yet" for rank in _other_running_ranks(asked)]


def _other_running_ranks(asked: dict[str, int]) -> list[int]:
    folders = {os.path.dirname(path) for path in asked}
    ranks = {rank for path in journals_in(*folders) if (rank := rank_of(path)) is not None}
    return sorted(ranks - {rank_of(path) for path in asked})


def find_duration(wanted: list[str]) -> int | None:
    """Return the longest run time of the processes of the journals ``JOURNAL:SLOT``, in ns.

    Return None if an end time is unknown (e.g. because the journal was removed), or if another rank
    of the node is still running.
    """
    asked = dict(map(_parse, wanted))
    lasted = [_lasted_ns(path) for path in asked]
    known = [ns for ns in lasted if ns is not None]
    return max(known) if len(known) == len(lasted) and not _other_running_ranks(asked) else None


def _lasted_ns(path: str) -> int | None:
    reader = _opened(path)
    if reader is None:
        return None
    end_ns, start_ns = reader.word(Word.END_TIME), reader.meta.monotonic_ns
    reader.close()
    return end_ns - start_ns if end_ns else None


def find_losses(wanted: list[str]) -> list[str]:
    """Return a message for each journal that lost spans, then the remedy; [] if none did."""
    lost = {path: _word(path, Word.LOST_RING_FULL) for path in dict(map(_parse, wanted))}
    messages = [
        f"rank {rank_of(path)}: {count:,} spans lost because the journal was full"
        for path, count in lost.items()
        if count
    ]
    return [*messages, ROOM] if messages else []


def find_left(run_id: str, run_folder: Path, short_id: str) -> list[str]:
    """Return a message if a run's processes have ended and no agent reads the journals, else []."""
    journals = journals_in(*folders_of_run(run_id, run_folder))
    if not journals or any(is_served(path.parent) or is_written(path) for path in journals):
        return []
    return [
        "unread data: processes and agent of the run have ended; run otel-mlperf doctor "
        f"{short_id} --recover"
    ]


def is_written(path: Path) -> bool:
    """Return whether a journal's process is still alive; False if the file is not a journal."""
    reader = _opened(path)
    if reader is None:
        return False
    try:
        return reader.is_owned
    finally:
        reader.close()


def _opened(path: str | Path) -> JournalReader | None:
    from otel_mlperf.journal.journal_reader import JournalReader  # loads numpy, 0.1 s

    try:
        return JournalReader(str(path), is_writable=False)
    except JournalError:
        return None


def _parse(wanted: str) -> tuple[str, int]:
    path, _, slot = wanted.rpartition(":")
    if not path or not slot.isdecimal():
        raise UsageError(f"--wait-stored {wanted}: expected JOURNAL:SLOT")
    return path, int(slot)


def _behind(path: str, slot: int) -> int:
    stored = _word(path, Word.STORED)
    return 0 if stored is None else max(0, slot - stored)


def _word(path: str, word: Word) -> int | None:
    try:
        with open(path, "rb") as file:
            file.seek(word * WORD)
            return int.from_bytes(file.read(WORD), "little")
    except FileNotFoundError:
        return None
