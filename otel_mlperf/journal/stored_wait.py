"""Waiting until the agent has stored what processes have written, and what is missing."""

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
"""Timeout where no user is blocked in the meantime."""
_LOOK_EVERY_S = 0.02
_LOADING_NS = 10 * 10**9
"""Period after a journal was made in which its agent may still be starting."""


def wait_until_stored(wanted: list[str], patience_s: float = PATIENCE_S) -> list[str]:
    """Wait until the rows ``JOURNAL:SLOT`` are in the tables; return a sentence for each missing.

    A missing journal has been drained: the agent removes it when all of it is stored. Other ranks
    of the node, which end at about the same time, are waited for as well.
    """
    asked = dict(map(_parse, wanted))
    end = time.monotonic() + patience_s
    while (missing := _missing(asked)) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY_S)
    return missing


def ask_for_tables(*folders: str) -> dict[Path, int]:
    """Request that the agents of the journals in ``folders`` write the tables now.

    Returns:
        Each journal with the monotonic time of the request; empty without journals.
    """
    asked_ns = time.monotonic_ns()
    return {path: asked_ns for path in journals_in(*folders) if _ask(path, asked_ns)}


def wait_for_tables(asked: dict[Path, int], patience_s: float = PATIENCE_S) -> list[str]:
    """Wait until the tables contain what was requested; return a sentence for each late rank.

    Journals without an agent are not waited for, unless the agent may still be starting.
    """
    end = time.monotonic() + patience_s
    while late := {path: ns for path, ns in asked.items() if not _has_until(path, ns)}:
        if time.monotonic() >= end or not any(map(_is_coming, late)):
            break
        time.sleep(_LOOK_EVERY_S)
    return list(dict.fromkeys(map(_lateness, late)))


def _ask(path: Path, asked_ns: int) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | CLOEXEC | NOFOLLOW)
    except OSError:  # removed since it was listed, or another user's
        return False
    try:
        return os.pwrite(fd, asked_ns.to_bytes(WORD, "little"), Word.TABLES_ASKED * WORD) == WORD
    finally:
        os.close(fd)


def _has_until(path: Path, asked_ns: int) -> bool:
    until_ns = _word(str(path), Word.TABLES_UNTIL)
    return until_ns is None or until_ns >= asked_ns


def _is_coming(path: Path) -> bool:
    """Return whether an agent serves a journal, or may still be starting."""
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
    what = "nothing is stored yet"
    if until_ns:
        what = f"the last {(time.monotonic_ns() - until_ns) / 1e9:.1f} s are not stored yet"
    why = "" if is_served(path.parent) else "; no agent reads the journal of this rank"
    return f"rank {rank_of(path)}: {what}{why}"


def _missing(asked: dict[str, int]) -> list[str]:
    behind = {path: left for path, slot in asked.items() if (left := _behind(path, slot))}
    return [
        f"rank {rank_of(path)}: {left:,} of {asked[path]:,} rows are still being stored"
        for path, left in behind.items()
    ] + [f"rank {rank} has not ended yet" for rank in _others(asked)]


def _others(asked: dict[str, int]) -> list[int]:
    """Return the other ranks of the node that have not ended."""
    beside = {os.path.dirname(path) for path in asked}
    there = {rank for path in journals_in(*beside) if (rank := rank_of(path)) is not None}
    return sorted(there - {rank_of(path) for path in asked})


def find_duration(wanted: list[str]) -> int | None:
    """Return how long the journals' processes ran, in nanoseconds, according to the journals.

    None if that is not known any more, or another rank of the node still runs.
    """
    asked = dict(map(_parse, wanted))
    lasted = [_lasted_ns(path) for path in asked]
    known = [ns for ns in lasted if ns is not None]
    return max(known) if len(known) == len(lasted) and not _others(asked) else None


def _lasted_ns(path: str) -> int | None:
    reader = _opened(path)
    if reader is None:
        return None
    end_ns, start_ns = reader.word(Word.END_TIME), reader.meta.monotonic_ns
    reader.close()
    return end_ns - start_ns if end_ns else None


def find_losses(wanted: list[str]) -> list[str]:
    """Return what existing journals have lost for want of room, and the remedy."""
    lost = {path: _word(path, Word.LOST_RING_FULL) for path in dict(map(_parse, wanted))}
    told = [
        f"rank {rank_of(path)}: {count:,} spans lost because the journal was full"
        for path, count in lost.items()
        if count
    ]
    return [*told, ROOM] if told else []


def find_left(run_id: str, run_folder: Path, short_id: str) -> list[str]:
    """Return a sentence if a run's processes have ended and no agent reads what they left."""
    journals = journals_in(*folders_of_run(run_id, run_folder))
    if not journals or any(is_served(path.parent) or is_written(path) for path in journals):
        return []
    return [
        "unread data: processes and agent of the run have ended; run otel-mlperf doctor "
        f"{short_id} --recover"
    ]


def is_written(path: Path) -> bool:
    """Return whether the process that made a journal still records; False for other files."""
    reader = _opened(path)
    if reader is None:
        return False
    try:
        return reader.is_owned
    finally:
        reader.close()


def _opened(path: str | Path) -> JournalReader | None:
    """Return a journal for reading; None if it is no journal, or gone."""
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
    """Return the number of rows up to ``slot`` that are not in the tables yet."""
    stored = _word(path, Word.STORED)
    return 0 if stored is None else max(0, slot - stored)


def _word(path: str, word: Word) -> int | None:
    """Return a header word; None if the journal is gone."""
    try:
        with open(path, "rb") as file:
            file.seek(word * WORD)
            return int.from_bytes(file.read(WORD), "little")
    except FileNotFoundError:
        return None
