"""When does a recording begin, by the system's clock, and what if that is before 1970?

No format knows a time before 1970: a span would have no duration there, for begin and end would
both be 1970. A program may set its clock back so far (tests that freeze time do), and a machine
without a battery starts in 1970, where what began before the recording would have no time.
"""

from __future__ import annotations

import time
from typing import Final

from otel_mlperf.journal.meta import TOLD_LATER_NS
from otel_mlperf.recorder.core.faults import say_once

EARLIEST_NS: Final = TOLD_LATER_NS
"""So early that whatever is told later has begun after 1970, too."""


def start_time_ns() -> int:
    """Nanoseconds since 1970; where the clock stands before or at that, an hour, which is said."""
    now = time.time_ns()
    if now >= EARLIEST_NS:
        return now
    say_once("the system's clock stands at 1970 or before: the run is recorded as if it had begun "
             "at 01:00 on 1 January 1970; durations are right, set the clock")  # fmt: skip
    return EARLIEST_NS
