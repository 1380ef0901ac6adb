"""Has the agent stored all that a process has written?"""

from __future__ import annotations

import os
import struct
import time

from otel_mlperf.errors import UsageError
from otel_mlperf.journal.layout import WORD, Word

PATIENCE_S = 2.0
_LOOK_EVERY_S = 0.02


def wait_until_stored(wanted: list[str], patience_s: float = PATIENCE_S) -> list[str]:
    """Waits until the rows ``JOURNAL:SLOT`` are in the tables; a sentence for each that is not.

    A journal that is gone has been drained: the agent removes it when all of it is stored.
    """
    missing = {path: slot for path, slot in map(_parse, wanted) if _behind(path, slot)}
    end = time.monotonic() + patience_s
    while missing and time.monotonic() < end:
        time.sleep(_LOOK_EVERY_S)
        missing = {path: slot for path, slot in missing.items() if _behind(path, slot)}
    return [
        f"rank {os.path.basename(path).partition('-')[0]}: {_behind(path, slot):,} of {slot:,} "
        "rows are still being stored"
        for path, slot in missing.items()
    ]


def _parse(wanted: str) -> tuple[str, int]:
    path, _, slot = wanted.rpartition(":")
    if not path or not slot.isdecimal():
        raise UsageError(f"--wait-stored {wanted}: JOURNAL:SLOT is expected")
    return path, int(slot)


def _behind(path: str, slot: int) -> int:
    """How many rows up to ``slot`` are not in the tables yet."""
    try:
        with open(path, "rb") as file:
            file.seek(Word.STORED * WORD)
            (stored,) = struct.unpack("<Q", file.read(WORD))
    except (FileNotFoundError, struct.error):
        return 0
    return max(0, slot - int(stored))
