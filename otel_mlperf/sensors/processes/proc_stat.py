"""What does the kernel say of one process in a single line?"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from otel_mlperf.sensors.host.cpu import TICKS_A_SECOND
from otel_mlperf.sensors.kernel_files import numbers

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_LEAST_FIELDS: Final = 22
_WANTED: Final = (1, 7, 9, 11, 12, 17, 19, 20, 21)
"""Places of the fields below, from ``parent`` on, behind the command."""


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
    found = numbers([words[place] for place in _WANTED])
    if not found:
        return None
    parent, minor, major, user, system, threads, start, virtual, resident = found
    return Stat(
        text[first + 1 : last],
        parent,
        minor,
        major,
        user / TICKS_A_SECOND,
        system / TICKS_A_SECOND,
        threads,
        start / TICKS_A_SECOND,
        virtual,
        resident * PAGE_BYTES,
    )
