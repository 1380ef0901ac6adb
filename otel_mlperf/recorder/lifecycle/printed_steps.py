"""How are the first steps told on stderr while they happen?

A step's line is made of the rows that it has written, outside its time. Who does not ask for it
pays nothing.
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.journal.layout import ROW_BYTES, Kind
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.sections.section_context import PARENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep

_ROW: Final = struct.Struct("<QQQ24sIIQ")
_MOST_HOLES: Final = 64
"""Slots in a row that were drawn by other threads and are not written yet."""


def say(line: str) -> None:
    """Writes a line where the program's errors go, if it has such a place."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")


class PrintedSteps:
    """Prints the first steps of each phase, with what their thread did in them."""

    def __init__(self, recorder: Recorder, most: int, write: Callable[[str], object] = say) -> None:
        self._recorder, self._most, self._write = recorder, most, write
        self._slot = 1
        stepping = recorder.stepping
        stepping.after_step = [*stepping.after_step, self.after]

    def after(self, step: OpenStep) -> None:
        """A step has ended."""
        if step.n >= self._most:
            return
        try:
            self._write(self._line(step))
        except Exception as error:  # noqa: BLE001 - recording never raises; stderr may be closed
            internal_error(error)

    def _line(self, step: OpenStep) -> str:
        spent: dict[str, int] = {}
        duration, sid = 0, step.section.sid
        for start, end, own, chunk, entry in self._sections():
            parent, root, track = PARENTS.unpack(chunk)
            if own == sid:
                duration = end - start - step.excluded
            elif parent == root == sid and track == step.section.track:
                name = self._recorder.registry.about(entry)[0]
                spent[name] = spent.get(name, 0) + end - start
        spent["not in a span"] = max(0, duration - sum(spent.values()))
        parts = ", ".join(f"{name} {ns / 1e6:.2f}" for name, ns in spent.items())
        return f"{step.phase} step {step.number}: {duration / 1e6:.2f} ms: {parts}"

    def _sections(self) -> Iterator[tuple[int, int, int, bytes, int]]:
        """Start, end, span, parents and name of the section rows since it was asked last."""
        journal = self._recorder.journal
        rows, at, slot, holes = journal.shape.rows, journal.shape.ring_at, self._slot, 0
        while holes < _MOST_HOLES:
            row: Any = _ROW.unpack_from(journal.buffer, at + (slot & rows - 1) * ROW_BYTES)
            written = row[6]
            if written > slot:  # the ring has come round since
                slot = written - rows + 1 if written - rows >= slot else slot + 1
                continue
            slot += 1
            if written != slot - 1:
                holes += 1
                continue
            self._slot, holes = slot, 0
            if row[5] & 15 == Kind.SECTION:
                yield row[:5]
