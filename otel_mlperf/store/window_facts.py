"""Structures and constants of the tables of profiler windows, in JSON columns too.

The code that counts windows writes them, and the code that answers questions reads them. ``--json``
has the same shapes. Times are Unix nanoseconds where the trace's are.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

KERNEL: Final = "kernel"
"""Value of ``what`` in ``totals`` for work of a device: kernels, copies and memsets."""
OPERATOR: Final = "operator"
ANNOTATION: Final = "annotation"
ON_DEVICE: Final = "device"
"""Category of what is counted over device work."""
CAPTURED: Final = "captured"
"""Operators that launched work of a graph in its capture."""
ON_HOST: Final = "host"
"""Category of what is counted over the outermost operators of the host."""


class Loss(msgspec.Struct, frozen=True):
    """Loss of records of one kind that a window lacks, or that are implausible."""

    kind: str
    missing: int
    """Number of missing records, of the ``of`` that should be there."""
    of: int
    start_ns: int
    """Start of the loss, up to ``end_ns``."""
    end_ns: int
    of_part: int = 0
    """Number of records that should be there between these times; 0: not known."""
    device: int | None = None
    stream: int | None = None
    what: str = ""
    """Which records, or by how much."""
    words: str = ""
    """All of this as half a sentence; its times count from the start of the window."""


class DevicePart(msgspec.Struct, frozen=True):
    """Activity of one device in the part of a window that is whole."""

    device: int
    busy_ns: int
    communication_ns: int
    exposed_communication_ns: int


class WholePart(msgspec.Struct, frozen=True):
    """Longest part of a window in which no work of a device is missing."""

    start_ns: int
    end_ns: int
    devices: list[DevicePart]

    @property
    def length_ns(self) -> int:
        """Return its length."""
        return self.end_ns - self.start_ns


class WindowCompleteness(msgspec.Struct, frozen=True, kw_only=True):
    """Completeness of the records of a window."""

    ratio: float
    """The smallest share of a kind of record that is there; 1.0: nothing is missing."""
    is_complete: bool
    has_device_times: bool
    """Whether the times of devices are plausible: otherwise they were busier."""
    launches: int
    """Number of calls that put work on a device."""
    answered: int
    """Of these, calls whose work has a record."""
    losses: list[Loss]
    whole: WholePart | None
    """Set where device work is missing; None: no part of any length is whole."""

    @property
    def words(self) -> str:
        """Return all losses as one sentence; empty without any."""
        return "; ".join(loss.words for loss in self.losses)


class CollectiveTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Total of the kernels of one collective operation in groups of one size."""

    operation: str
    """``all_reduce``, ``all_gather``, …"""
    group_size: int | None
    """Ranks of the group; None: the trace does not contain it."""
    calls: int
    total_ns: int
    bytes: int
    """Message bytes of the kernels whose size is known."""
    bus_bytes: float
    """Bytes that the busiest link had to carry for the kernels that took ``bus_ns``."""
    bus_ns: int


class UnknownRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one process of a trace of which it is unknown whether they are work of a device."""

    process: str
    """Name of the process, else its number as the file writes it."""
    events: int
    is_device: bool
    """Whether the process is a device's by its name; false: nothing in the file is known."""


class CapturedWork(msgspec.Struct, frozen=True, kw_only=True):
    """Information in a capture's trace about the graphs that a window replays."""

    capture: str
    """File name."""
    captures: int
    """Number of graphs whose capture it shows."""
    work: int
    """Kernels, copies and memsets that launches of graphs ran."""
    matched: int
    """Of these, those whose operator is known."""
    unmatched: dict[str, int]
    """Of these, those whose operator is unknown, by the reason."""


class StepEvents(NamedTuple):
    """Stored events and sections of one profiled step, on all ranks."""

    name: str
    phase: str
    """Empty: only an annotation shows the step."""
    number: int
    windows: list[tuple[int, str]]
    """Rank and digest of the windows that recorded it."""
    events: list[dict[str, Any]]
    """Rows of table ``spans``, of the kind *event*."""
    sections: dict[str, tuple[str, bool]]
    """Name of each recorded section above them, and whether it is the step itself, by id."""
    lengths_ns: dict[int, int]
    """Own duration of the step by rank, without other work inside it."""
