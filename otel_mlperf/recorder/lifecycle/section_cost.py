"""What does one section cost in this very process?

Measured at the start, on scratch memory, so that the overhead that is shown is not a guess made on
another machine.
"""

from __future__ import annotations

import itertools
import mmap
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from otel_mlperf.journal.layout import OPEN_BYTES, Shape

if TYPE_CHECKING:
    from otel_mlperf.config import Config

_ROWS = 1 << 11
_CALLS = 100
_ROUNDS = 5


def measure_cost(config: Config) -> int:
    """Nanoseconds that opening and closing a section takes, best of five rounds."""
    from otel_mlperf.recorder.core.recorder import Recorder

    meta: Any = SimpleNamespace(run_span=1, is_child=False, run_id="", restart=0)
    recorder = Recorder(_scratch_journal(), meta, config)
    best = 1 << 62
    with recorder.make(1):
        for _ in range(_ROUNDS):
            began = time.monotonic_ns()
            for _ in range(_CALLS):
                with recorder.make(1):
                    pass
            best = min(best, time.monotonic_ns() - began)
    return best // _CALLS


def _scratch_journal() -> Any:
    """What a recorder needs of a journal, in memory that nobody reads."""
    shape = Shape.of_rows(_ROWS)
    buffer = mmap.mmap(-1, shape.size)
    table = range(shape.table_at, shape.table_at + shape.open * OPEN_BYTES, OPEN_BYTES)
    return SimpleNamespace(
        shape=shape,
        buffer=buffer,
        words=memoryview(buffer).cast("Q"),
        free=list(table),
        lease=SimpleNamespace(take=itertools.count(1).__next__, end=1 << 62),
        entry=lambda content: 1,
    )
