"""Lines on stderr for the first steps of each phase, printed when a step ends.

A line is derived from the rows that the step has written, after the step's end.
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.journal.layout import ROW_BYTES, Kind
from otel_mlperf.quantities import size
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.used_so_far import Counters
from otel_mlperf.recorder.sections.section_context import PARENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep

_ROW: Final = struct.Struct("<QQQ24sIIQ")
_FLOAT: Final = struct.Struct("<d")
_MAX_HOLES: Final = 64
"""Number of consecutive unwritten slots after which no further rows are expected.

Other threads may have drawn slots without having written them yet.
"""


def say(line: str) -> None:
    """Write a line to stderr, if it exists."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")


class PrintedSteps:
    """Printer of a line for each of the first ``most`` steps of a phase."""

    def __init__(self, recorder: Recorder, most: int, write: Callable[[str], object] = say) -> None:
        self._recorder, self._max_steps, self._write = recorder, most, write
        self._slot = 1
        self._counters = Counters()
        stepping = recorder.stepping
        stepping.after_step = [*stepping.after_step, self.after]

    def after(self, step: OpenStep) -> None:
        """Print the line of an ended step, if the step is among the first ``most`` of its phase."""
        if step.n >= self._max_steps:
            return
        try:
            self._write(self._line(step))
        except Exception as error:  # noqa: BLE001 - recording never raises; stderr may be closed
            internal_error(error)

    def _line(self, step: OpenStep) -> str:
        spent: dict[str, int] = {}
        logged: dict[str, float] = {}
        duration, sid = 0, step.section.sid
        for kind, start, end, own, chunk, entry in self._rows():
            parent, root, track = PARENTS.unpack(chunk)
            if kind == Kind.VALUE:
                if root == sid:
                    logged[self._recorder.registry.about(entry)[0]] = _value(end)
            elif own == sid:
                duration = end - start - step.excluded
            elif parent == root == sid and track == step.section.track:
                name = self._recorder.registry.about(entry)[0]
                spent[name] = spent.get(name, 0) + end - start
        spent["untracked"] = max(0, duration - sum(spent.values()))
        parts = ", ".join(f"{name} {ns / 1e6:.2f}" for name, ns in spent.items())
        values = "".join(f"; {name} {value:.4g}" for name, value in logged.items())
        time = f"{duration / 1e6:.2f} ms: {parts}"
        return f"{step.phase} step {step.number}: {time}; {_memory(self._counters)}{values}"

    def _rows(self) -> Iterator[tuple[int, int, int, int, bytes, int]]:
        """Yield kind, start, end, span id, parents and entry of the rows since the last call.

        For a logged value, ``end`` contains the bits of the value, and the first of the parents is
        the step number.
        """
        journal = self._recorder.journal
        rows, at, slot, holes = journal.shape.rows, journal.shape.ring_at, self._slot, 0
        while holes < _MAX_HOLES:
            row: Any = _ROW.unpack_from(journal.buffer, at + (slot & rows - 1) * ROW_BYTES)
            written = row[6]
            if written > slot:  # the ring has wrapped around in the meantime
                slot = written - rows + 1 if written - rows >= slot else slot + 1
                continue
            slot += 1
            if written != slot - 1:
                holes += 1
                continue
            self._slot, holes = slot, 0
            if (kind := row[5] & 15) in (Kind.SECTION, Kind.VALUE):
                yield kind, *row[:5]


def _value(bits: int) -> float:
    value: float = _FLOAT.unpack(bits.to_bytes(8, "little"))[0]
    return value


def _memory(counters: Counters) -> str:
    now = counters.of_process()
    text = f"memory {size(now.resident_bytes or 0)}"
    if now.device is None:
        return text
    return f"{text}, cuda {size(now.device.allocated_bytes)}, peak {size(now.device.peak_bytes)}"
