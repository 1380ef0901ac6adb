"""Grid of wall-clock periods of equal length over a run.

Periods start at local midnight of the day on which the run started, and at every multiple of the
period length after midnight: hourly periods start at full hours. The UTC offset at the run's start
applies throughout, so that all periods have equal length when summer time starts or ends.
"""

from __future__ import annotations

import re
import time
from typing import Final, NamedTuple

from otel_mlperf.errors import UsageError

MINUTE_NS: Final = 60 * 10**9
_DAY_S: Final = 86_400
_LENGTH: Final = re.compile(r"([1-9]\d{0,5})(m|h|d)")
_MINUTES: Final = {"m": 1, "h": 60, "d": 1440}
_MAX: Final = 10_000


class Grid(NamedTuple):
    """Consecutive periods of equal length, numbered from 0."""

    origin_ns: int
    every_ns: int
    utc_offset_s: int
    periods: int

    def begin_ns(self, number: int) -> int:
        """Return the start of period ``number``, as Unix time."""
        return self.origin_ns + number * self.every_ns


def parse_length(text: str) -> int:
    """Parse the length of a period, like ``15m``, ``1h`` or ``1d``, into nanoseconds.

    Raises:
        UsageError: the text is not a number of minutes, hours or days.
    """
    found = _LENGTH.fullmatch(text)
    if not found:
        raise UsageError(f"--every {text}: expected whole minutes, hours or days, e.g. 15m, 1h, 1d")
    return int(found[1]) * _MINUTES[found[2]] * MINUTE_NS


def lay_grid(first_ns: int, last_ns: int, every_ns: int) -> Grid:
    """Return the grid of periods from ``first_ns`` to ``last_ns`` (Unix time), both included.

    Raises:
        UsageError: there would be too many periods.
    """
    offset_s = time.localtime(first_ns // 10**9).tm_gmtoff
    local_s = first_ns // 10**9 + offset_s
    midnight_ns = (local_s - local_s % _DAY_S - offset_s) * 10**9
    origin_ns = midnight_ns + (first_ns - midnight_ns) // every_ns * every_ns
    count = (last_ns - origin_ns) // every_ns + 1
    if count > _MAX:
        minutes = every_ns // MINUTE_NS
        raise UsageError(
            f"--every {minutes}m: the run would be divided into {count:,} periods, at most "
            f"{_MAX:,} are possible; choose longer periods"
        )
    return Grid(origin_ns, every_ns, offset_s, count)
