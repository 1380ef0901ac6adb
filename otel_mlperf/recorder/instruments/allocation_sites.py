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
    """The lines that allocate, from ``begin`` to ``end``."""

    _asking: Final[set[int]] = set()
    """Those for whose sake it is on, by identity."""

    def __init__(self) -> None:
        import tracemalloc

        self._tracer: Any = tracemalloc
        self.before = b""
        """What was there at the begin, where it was on already, as ``look`` gives it."""

    def begin(self) -> None:
        """Switches it on, if need be."""
        if self._tracer.is_tracing():
            self.before = self.look()
            if not self._asking:
                return
        self._asking.add(id(self))  # first: interrupted after it has started, it has to be stopped
        if not self._tracer.is_tracing():
            self._tracer.start()

    def look(self) -> bytes:
        """What is there of what the program allocated; empty: somebody has switched it off.

        For ``read_sites``: as bytes it is no object among those that are counted meanwhile.
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
        """Switches it off, if nobody else is left; again does nothing."""
        if id(self) in self._asking:
            self._asking.discard(id(self))
            if not self._asking and self._tracer.is_tracing():
                self._tracer.stop()


def read_sites(seen: bytes) -> Sites:
    """What ``look`` saw."""
    rows = msgspec.msgpack.decode(seen) if seen else []
    return {(file, line): (count, size) for file, line, count, size in rows}
