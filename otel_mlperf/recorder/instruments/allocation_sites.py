"""Allocation sites: lines whose allocations since a given time are still alive.

``tracemalloc``, which traces allocations, has one state for the process. Tracing is on while at
least one ``AllocationSites`` is in use. Tracing that the program itself switched on stays on.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from otel_mlperf.recorder.sections.call_profile import OURS

Sites = dict[tuple[str, int], tuple[int, int]]
"""Number of blocks and bytes, by file and line."""


class AllocationSites:
    """Tracing of the lines that allocate memory, from ``begin`` to ``end``."""

    _users: Final[set[int]] = set()
    """Ids of the objects for which tracing was switched on."""

    def __init__(self) -> None:
        import tracemalloc

        self._tracer: Any = tracemalloc
        self.before = b""
        """Live allocations at ``begin`` if tracing was already on, as returned by ``look``."""

    def begin(self) -> None:
        """Start tracing, unless tracing is already on."""
        if self._tracer.is_tracing():
            self.before = self.look()
            if not self._users:
                return
        self._users.add(id(self))  # first: an interrupt after ``start`` must lead to ``stop``
        if not self._tracer.is_tracing():
            self._tracer.start()

    def look(self) -> bytes:
        """Return the program's live allocations, encoded for ``read_sites``.

        The result is empty if tracing was switched off. Its type is bytes, because ``tracemalloc``
        would count other objects as allocations of the program.
        """
        if not self._tracer.is_tracing():
            return b""
        lines = self._tracer.take_snapshot().statistics("lineno")
        return msgspec.msgpack.encode(
            [
                (frame.filename, frame.lineno, one.count, one.size)
                for one in lines
                if not (frame := one.traceback[0]).filename.startswith(
                    (OURS, self._tracer.__file__)
                )
            ]
        )

    def end(self) -> None:
        """Stop tracing, unless another ``AllocationSites`` or the program uses it; idempotent."""
        if id(self) in self._users:
            self._users.discard(id(self))
            if not self._users and self._tracer.is_tracing():
                self._tracer.stop()


def read_sites(seen: bytes) -> Sites:
    """Decode a result of ``look``."""
    rows = msgspec.msgpack.decode(seen) if seen else []
    return {(file, line): (count, size) for file, line, count, size in rows}
