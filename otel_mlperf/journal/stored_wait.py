"""Has the agent stored all that a process has written, and is there anybody who will?"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from otel_mlperf.errors import JournalError, UsageError
from otel_mlperf.journal.folder_lock import is_served
from otel_mlperf.journal.journal_folder import ROOM, folders_of_run, journals_in, rank_of
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import WORD, Word

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 2.0
_LOOK_EVERY_S = 0.02


def wait_until_stored(wanted: list[str], patience_s: float = PATIENCE_S) -> list[str]:
    """Waits until the rows ``JOURNAL:SLOT`` are in the tables; a sentence for each that is not.

    A journal that is gone has been drained: the agent removes it when all of it is stored. Other
    ranks of the node, which end at about the same time, are waited for as well.
    """
    asked = dict(map(_parse, wanted))
    end = time.monotonic() + patience_s
    while (missing := _missing(asked)) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY_S)
    return missing


def _missing(asked: dict[str, int]) -> list[str]:
    behind = {path: left for path, slot in asked.items() if (left := _behind(path, slot))}
    ranks = {rank_of(path) for path in asked}
    beside = {os.path.dirname(path) for path in asked}
    others = {rank for path in journals_in(*beside) if (rank := rank_of(path)) is not None}
    return [
        f"rank {rank_of(path)}: {left:,} of {asked[path]:,} rows are still being stored"
        for path, left in behind.items()
    ] + [f"rank {rank} has not ended yet" for rank in sorted(others - ranks)]


def find_losses(wanted: list[str]) -> list[str]:
    """What journals that are still there have lost for want of room, and what helps."""
    lost = {path: _word(path, Word.LOST_RING_FULL) for path in dict(map(_parse, wanted))}
    told = [
        f"rank {rank_of(path)}: {count:,} spans lost, the journal was full"
        for path, count in lost.items()
        if count
    ]
    return [*told, ROOM] if told else []


def find_left(run_id: str, run_folder: Path, short_id: str) -> list[str]:
    """That processes of a run have ended, and that nobody has read what they left; if it is so."""
    journals = journals_in(*folders_of_run(run_id, run_folder))
    if not journals or any(is_served(path.parent) or is_written(path) for path in journals):
        return []
    return [f"its processes have ended, and nobody reads: otel-mlperf recover {short_id}"]


def is_written(path: Path) -> bool:
    """Whether the process that made a journal goes on recording; False for what is no journal."""
    try:
        reader = JournalReader(str(path))
    except JournalError:
        return False
    try:
        return reader.is_owned
    finally:
        reader.close()


def _parse(wanted: str) -> tuple[str, int]:
    path, _, slot = wanted.rpartition(":")
    if not path or not slot.isdecimal():
        raise UsageError(f"--wait-stored {wanted}: JOURNAL:SLOT is expected")
    return path, int(slot)


def _behind(path: str, slot: int) -> int:
    """How many rows up to ``slot`` are not in the tables yet."""
    stored = _word(path, Word.STORED)
    return 0 if stored is None else max(0, slot - stored)


def _word(path: str, word: Word) -> int | None:
    """A header word; None where the journal is gone."""
    try:
        with open(path, "rb") as file:
            file.seek(word * WORD)
            return int.from_bytes(file.read(WORD), "little")
    except FileNotFoundError:
        return None
