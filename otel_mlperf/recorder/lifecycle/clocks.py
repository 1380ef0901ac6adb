"""Pairs of Unix and monotonic time, and the start time of a recording.

All times of a journal are monotonic; one pair of both clocks converts them to Unix time. A thread
that is preempted between the two readings would shift every span by milliseconds, so the closest of
several pairs is used.

No format represents a time before 1970: a span would have no duration there, because start and end
would both be 1970. A program may set its clock back that far (tests that freeze time do). A machine
without a battery starts in 1970, where what started before the recording would have no time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from otel_mlperf.journal.meta import MAX_BACKDATE_NS
from otel_mlperf.recorder.core.faults import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

EARLIEST_NS: Final = MAX_BACKDATE_NS
"""Earliest start of a recording in Unix time: so late that backdated sections start after 1970,
too.
"""
Clocks = tuple[int, int]
"""Unix and monotonic nanoseconds of one moment."""
_PAIRS: Final = 5


def read_clocks(
    unix: Callable[[], int] | None = None, monotonic: Callable[[], int] | None = None
) -> Clocks:
    """Return the closest of five pairs; costs 1 µs, exact to the time of one reading.

    Looked up when they are read: programs and tests may have replaced the clocks of ``time``.
    """
    unix, monotonic = unix or time.time_ns, monotonic or time.monotonic_ns
    best = (1 << 62, 0, 0)
    for _ in range(_PAIRS):
        before_ns, unix_ns, after_ns = monotonic(), unix(), monotonic()
        best = min(best, (after_ns - before_ns, unix_ns, (before_ns + after_ns) // 2))
    return best[1], best[2]


def start_clocks() -> Clocks:
    """Return both clocks at the start of a recording; Unix time is never before ``EARLIEST_NS``."""
    unix_ns, monotonic_ns = read_clocks()
    return unix_ns if unix_ns >= EARLIEST_NS else start_time_ns(), monotonic_ns


def start_time_ns() -> int:
    """Return nanoseconds since 1970; an hour, with a warning, if the clock is at or before that."""
    now = time.time_ns()
    if now >= EARLIEST_NS:
        return now
    warn_once("the system clock shows 1970 or earlier: the run is recorded with a start at 01:00 "
              "on 1 January 1970; durations are correct; set the clock")  # fmt: skip
    return EARLIEST_NS
