"""What does the kernel say of one process in a single line?"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from otel_mlperf.sensors.cpu import TICKS_A_SECOND
from otel_mlperf.sensors.files import number

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_LEAST_FIELDS: Final = 22
_PARENT, _MINOR, _MAJOR, _USER, _SYSTEM, _THREADS, _START, _VIRTUAL, _RESIDENT = _WANTED = (
    1, 7, 9, 11, 12, 17, 19, 20, 21,
)  # fmt: skip
"""Places behind the command of ``/proc/<pid>/stat``."""


class Stat(NamedTuple):
    """One process, all of its threads together."""

    command: bytes
    """At most 15 bytes of it."""
    parent: int
    minor_faults: int
    major_faults: int
    user_s: float
    system_s: float
    threads: int
    start_s: float
    """After the start of the host."""
    virtual_bytes: int
    resident_bytes: int


def parse_stat(text: bytes) -> Stat | None:
    """Of ``/proc/<pid>/stat``; None for any other text. A command may hold blanks and brackets."""
    first, last = text.find(b"("), text.rfind(b")")
    words = text[last + 1 :].split()
    if not 0 <= first < last or len(words) < _LEAST_FIELDS:
        return None
    found = {place: number(words[place]) for place in _WANTED}
    if None in found.values():
        return None
    known = {place: value or 0 for place, value in found.items()}
    return Stat(
        text[first + 1 : last],
        known[_PARENT],
        known[_MINOR],
        known[_MAJOR],
        known[_USER] / TICKS_A_SECOND,
        known[_SYSTEM] / TICKS_A_SECOND,
        known[_THREADS],
        known[_START] / TICKS_A_SECOND,
        known[_VIRTUAL],
        known[_RESIDENT] * PAGE_BYTES,
    )
