"""Readings of the Unix and monotonic clocks, and the start time of a recording.

All times in a journal are monotonic; one pair of readings of both clocks converts them to Unix
time. If the thread were preempted between the two readings, all spans would be shifted by
milliseconds. Therefore several pairs are read, and the one with the shortest interval is used.

Start times are limited to 1970 or later, because span formats cannot represent earlier times. The
clock may be earlier if a program sets it back (as tests that freeze time do), or if a machine
without a battery has booted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from otel_mlperf.journal.meta import MAX_BACKDATE_NS
from otel_mlperf.recorder.core.faults import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

EARLIEST_NS: Final = MAX_BACKDATE_NS
"""Earliest start of a recording in Unix time, so that backdated sections start in 1970 or later."""
Clocks = tuple[int, int]
"""Unix and monotonic time in ns at the same moment."""
_PAIRS: Final = 5


def read_clocks(
    unix: Callable[[], int] | None = None, monotonic: Callable[[], int] | None = None
) -> Clocks:
    """Return the best of five pairs of Unix and monotonic time; costs 1 µs.

    Args:
        unix: the Unix clock (default: ``time.time_ns``, looked up at each call because programs and
            tests may replace it).
        monotonic: the monotonic clock (default: ``time.monotonic_ns``, looked up at each call).
    """
    unix, monotonic = unix or time.time_ns, monotonic or time.monotonic_ns
    best = (1 << 62, 0, 0)
    for _ in range(_PAIRS):
        before_ns, unix_ns, after_ns = monotonic(), unix(), monotonic()
        best = min(best, (after_ns - before_ns, unix_ns, (before_ns + after_ns) // 2))
    return best[1], best[2]


def start_clocks() -> Clocks:
    """Return the Unix time of a recording's start, at least ``EARLIEST_NS``, and monotonic time."""
    unix_ns, monotonic_ns = read_clocks()
    return unix_ns if unix_ns >= EARLIEST_NS else start_time_ns(), monotonic_ns


def start_time_ns() -> int:
    """Return the Unix time in ns; if the clock is too early, warn and return ``EARLIEST_NS``."""
    now = time.time_ns()
    if now >= EARLIEST_NS:
        return now
    warn_once("the system clock shows 1970 or earlier: the run is recorded with a start at 01:00 "
              "on 1 January 1970; durations are correct; set the clock")  # fmt: skip
    return EARLIEST_NS
