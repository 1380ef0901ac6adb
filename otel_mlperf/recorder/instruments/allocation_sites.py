"""Allocation sites: lines whose allocations since a given point are still alive.

It uses tracemalloc of the standard library, which is shared by the whole process. Tracing is on
from the first request to the last. If the program had switched it on itself, it stays on.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from otel_mlperf.recorder.sections.call_profile import OURS

Sites = dict[tuple[str, int], tuple[int, int]]
"""Blocks and bytes by file and line."""


class AllocationSites:
    """Lines that allocate, from ``begin`` to ``end``."""

    _asking: Final[set[int]] = set()
    """Users for which tracing is on, by identity."""

    def __init__(self) -> None:
        import tracemalloc

        self._tracer: Any = tracemalloc
        self.before = b""
        """The allocations at the start, where tracing was on already, in the form of ``look``."""

    def begin(self) -> None:
        """Switch tracing on, if necessary."""
        if self._tracer.is_tracing():
            self.before = self.look()
            if not self._asking:
                return
        self._asking.add(id(self))  # first: if interrupted after the start, it has to be stopped
        if not self._tracer.is_tracing():
            self._tracer.start()

    def look(self) -> bytes:
        """Return the program's live allocations; empty: somebody has switched tracing off.

        The result is for ``read_sites``: as bytes it adds no objects to those that are being
        counted.
        """
        if not self._tracer.is_tracing():
            return b""
        seen = self._tracer.take_snapshot().statistics("lineno")
        return msgspec.msgpack.encode(
            [
                (frame.filename, frame.lineno, one.count, one.size)
                for one in seen
                if not (frame := one.traceback[0]).filename.startswith(
                    (OURS, self._tracer.__file__)
                )
            ]
        )

    def end(self) -> None:
        """Switch tracing off, if no other user is left; idempotent."""
        if id(self) in self._asking:
            self._asking.discard(id(self))
            if not self._asking and self._tracer.is_tracing():
                self._tracer.stop()


def read_sites(seen: bytes) -> Sites:
    """Decode a result of ``look``."""
    rows = msgspec.msgpack.decode(seen) if seen else []
    return {(file, line): (count, size) for file, line, count, size in rows}
