"""Values of ``log()``, recorded without waiting for a GPU.

The row of a plain number is written immediately. A tensor on a device is copied asynchronously into
pinned memory. Its row, with the time and step of the call, is written after the copy has completed.
"""

from __future__ import annotations

import struct
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.sections.section_context import root_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.sections.parents import Parents
    from otel_mlperf.recorder.stepping.step_recording import Stepping

_MASK = (1 << 64) - 1
_SLOTS = 256
_BITS = struct.Struct("<d")
Where = tuple[int, int, int, int, int]
"""Span id of the section, step number, root, track, and number of the value's name."""


class Values:
    """Writer of logged values to one journal."""

    def __init__(self, recording: Recording, parents: Parents, stepping: Stepping) -> None:
        self._recording, self._parents, self._stepping = recording, parents, stepping
        self._late: DeferredTensors | None = None

    def log(self, values: dict[str, Any]) -> None:
        """Write a row for each value; values on a device are written later."""
        self.publish()
        registry, parents, now = self._recording.registry, self._parents, time.monotonic_ns()
        section, track = parents.surrounding()
        step = parents.step_around(section) or parents.current_step(registry.phase)
        number = step.number if step else self._stepping.next_number(registry.phase)
        sid, root = (section.sid, root_of(section)) if section is not None else (0, 0)
        for name, value in values.items():
            text = safe_name_text(name)
            entry = registry.entry(("log", text), text, names.OTHER)
            where = (sid, number & _MASK, root, track, entry)
            try:
                self._log_value(text, value, now, where)
            except Exception as error:  # noqa: BLE001 - one bad value does not lose the others
                internal_error(error)

    def _log_value(self, name: str, value: Any, now: int, where: Where) -> None:
        if _is_tensor(value):
            self._tensor(name, value, now, where)
            return
        try:
            number = float(value) if hasattr(value, "__float__") else None
        except (TypeError, ValueError, OverflowError):  # several numbers, or too large for a float
            number = None
        if number is None:
            warn_once(f"log(): {name} is a {type(value).__name__}, expected a number; ignored")
        else:
            self.write(now, number, where)

    def _tensor(self, name: str, tensor: Any, now: int, where: Where) -> None:
        if tensor.numel() != 1:
            warn_once(f"log(): {name} is a tensor of {tensor.numel()} values, expected a single "
                      "value; ignored")  # fmt: skip
        elif tensor.device.type == "cpu":
            self.write(now, float(tensor.detach()), where)
        elif tensor.device.type != "meta":
            began_ns = time.monotonic_ns()
            if self._late is None:
                self._late = DeferredTensors()
            if not self._late.copy(tensor, now, where):
                self._recording.journal.count(Word.LOST_VALUES)
            # Count CUDA calls as overhead of the recorder: they cost tens of microseconds.
            self._recording.journal.count(Word.WATCH_TIME, time.monotonic_ns() - began_ns)

    def write(self, time_ns: int, value: float, where: Where) -> None:
        """Write the row of one value; ``where`` is the place of the ``log()`` call."""
        bits = int.from_bytes(_BITS.pack(value), "little")
        sid, number, root, track, entry = where
        self._recording.journal.put(
            time_ns, bits, sid, number, root, track, entry, Kind.VALUE, Word.LOST_VALUES
        )

    def publish(self) -> None:
        """Write the rows of tensors whose copies have completed."""
        if self._late is None or self._recording.is_retired:
            return
        try:
            for time_ns, value, where in self._late.arrived():
                self.write(time_ns, value, where)
        except Exception as error:  # noqa: BLE001 - after an error on the device none ever arrives
            internal_error(error)
            late, self._late = self._late, None
            self._recording.journal.count(Word.LOST_VALUES, len(late.waiting))

    def finish(self, deadline_ns: int) -> None:
        """Wait for pending copies until a monotonic deadline; count the remaining ones as lost."""
        self.publish()
        while self._late is not None and self._late.waiting and time.monotonic_ns() < deadline_ns:
            time.sleep(0.001)
            self.publish()
        if self._late is not None and self._late.waiting:
            self._recording.journal.count(Word.LOST_VALUES, len(self._late.waiting))


class DeferredTensors:
    """Pending copies of device tensors, in the order of the ``log()`` calls."""

    def __init__(self) -> None:
        self._torch: Any = sys.modules["torch"]
        self._slots = self._torch.empty(_SLOTS, dtype=self._torch.float64, pin_memory=True)
        self._next = 0
        self._device: Any = None
        self.waiting: deque[tuple[Any, int, int, Where]] = deque()

    def copy(self, tensor: Any, time_ns: int, where: Where) -> bool:
        """Start to copy a tensor; return whether that was possible.

        Copying is impossible if too many copies are pending or a CUDA graph is being captured.
        """
        if len(self.waiting) >= _SLOTS or _is_capturing(self._torch, tensor.device):
            return False
        slot = self._next
        with self._torch.no_grad():
            self._slots[slot].copy_(tensor.detach().reshape(()), non_blocking=True)
            event = self._torch.get_device_module(tensor.device).Event()
            event.record()
        self._next, self._device = (slot + 1) % _SLOTS, tensor.device
        self.waiting.append((event, slot, time_ns, where))
        return True

    def arrived(self) -> Iterator[tuple[int, float, Where]]:
        """Yield time, value and ``Where`` of completed copies, in the order of ``log()`` calls."""
        # Not while this thread captures a CUDA graph: the query of an event would make it fail.
        if self.waiting and _is_capturing(self._torch, self._device):
            return
        while self.waiting and self.waiting[0][0].query():
            _, slot, time_ns, where = self.waiting.popleft()
            yield time_ns, float(self._slots[slot]), where


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_capturing(torch: Any, device: Any) -> bool:
    """Return whether this thread captures a CUDA graph, which copies and events would break."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())
