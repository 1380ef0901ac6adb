"""How much of a profiler window is there: the shape of the answer, as ``--json`` prints it.

Times are Unix nanoseconds where the trace's are.
"""

from __future__ import annotations

import msgspec


class WindowLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one kind that a window lacks, or that cannot be believed."""

    kind: str
    missing: int
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
    words: str
    """All of this as half a sentence; its times count from the start of the window."""


class DevicePart(msgspec.Struct, frozen=True, kw_only=True):
    """What one device did in the part of a window that is whole."""

    device: int
    busy_ns: int
    communication_ns: int
    exposed_communication_ns: int


class WholePart(msgspec.Struct, frozen=True, kw_only=True):
    """The longest part of a window in which no work of a device is missing."""

    start_ns: int
    end_ns: int
    devices: list[DevicePart]


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
    losses: list[WindowLoss]
    whole: WholePart | None
    """Where device work is missing; None: no part of any length is whole."""
