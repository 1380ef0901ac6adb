"""Structures and constants of the tables of profiler windows, in JSON columns too.

The code that counts windows writes them, and the code that answers questions reads them. ``--json``
has the same shapes. Times are Unix nanoseconds where the trace's are.
"""

from __future__ import annotations

from typing import Final

import msgspec

KERNEL: Final = "kernel"
"""In ``totals``, as what is counted: work of a device: kernels, copies and memsets."""
OPERATOR: Final = "operator"
ANNOTATION: Final = "annotation"
ON_DEVICE: Final = "device"
"""As the category: what is counted over device work."""
CAPTURED: Final = "captured"
"""Operators that launched work of a graph in its capture."""
ON_HOST: Final = "host"
"""What is counted over the outermost operators of the host."""


class Loss(msgspec.Struct, frozen=True):
    """Records of one kind that a window lacks, or that cannot be believed."""

    kind: str
    missing: int
    """How many, of the ``of`` that should be there."""
    of: int
    start_ns: int
    """From here on they are missing, up to ``end_ns``."""
    end_ns: int
    of_part: int = 0
    """How many should be there between these times; 0: not known."""
    device: int | None = None
    stream: int | None = None
    what: str = ""
    """Which, or by how much."""
    words: str = ""
    """All of this as half a sentence; its times count from the start of the window."""


class DevicePart(msgspec.Struct, frozen=True):
    """What one device did in the part of a window that is whole."""

    device: int
    busy_ns: int
    communication_ns: int
    exposed_communication_ns: int


class WholePart(msgspec.Struct, frozen=True):
    """The longest part of a window in which no work of a device is missing."""

    start_ns: int
    end_ns: int
    devices: list[DevicePart]

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns


class WindowCompleteness(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a window is there."""

    ratio: float
    """The smallest share of a kind of record that is there; 1.0: nothing is missing."""
    is_complete: bool
    has_device_times: bool
    """Whether nothing is known against the times of devices: else they were busier."""
    launches: int
    """Calls that put work on a device."""
    answered: int
    """Of these, calls of whose work a record is there."""
    losses: list[Loss]
    whole: WholePart | None
    """Where device work is missing; None: no part of any length is whole."""


class CollectiveTotal(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of one collective operation in groups of one size."""

    operation: str
    """``all_reduce``, ``all_gather``, …"""
    group_size: int | None
    """Ranks of the group; None: the trace does not tell."""
    calls: int
    total_ns: int
    bytes: int
    """Messages of the kernels whose size is known."""
    bus_bytes: float
    """What the busiest link had to carry for the kernels that took ``bus_ns``."""
    bus_ns: int


class UnknownRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one process of a trace, of which is not known whether they are work of a device."""

    process: str
    """Its name, else its number as the file writes it."""
    events: int
    is_device: bool
    """Whether the process is a device's by its name; false: nothing in the file is known."""


class CapturedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace of the capture says of the graphs that a window replays."""

    capture: str
    """File name."""
    captures: int
    """Graphs whose capture it shows."""
    work: int
    """Kernels, copies and memsets that launches of graphs ran."""
    matched: int
    """Of these, those whose operator is known."""
    unmatched: dict[str, int]
    """Of these, those of which it is not, by the reason."""
