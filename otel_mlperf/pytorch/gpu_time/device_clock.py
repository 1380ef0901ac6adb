"""What does one device's clock say at each stamp, and how does it stand to the host's?

Events tell only how far apart two of them are, in milliseconds of 24 bits: to be exact they are
held against one that is near. The stamps of a batch are held against the last one of the batch
before; what those distances add up to is the device's clock here, which begins at 0.

How it stands to the host's clock is known within bounds, without waiting for anything: the device
cannot pass a stamp before it is given it, and has passed it by the time that it says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Stamp:
    """One event among the work of a stream."""

    __slots__ = ("event", "host_ns", "is_dropped", "place", "seen_ns")

    def __init__(self, event: Any, place: tuple[int, int], host_ns: int) -> None:
        self.event, self.place = event, place
        """Device, and the handle of its stream."""
        self.host_ns = host_ns
        """Just before it was given to the device, by the host's monotonic clock."""
        self.seen_ns = 0
        """When it was first found passed; 0: not yet."""
        self.is_dropped = False
        """Whether nobody asks for its time any more."""


class Bounds(NamedTuple):
    """Host clock less device clock lies between them, ns."""

    low: int
    high: int


class DeviceClock:
    """The clock of one device."""

    def __init__(self) -> None:
        self._near: Stamp | None = None
        self._near_ns = 0

    def read(self, stamps: Sequence[Stamp]) -> list[int]:
        """What it said at each of them, ns; all have been passed."""
        near = self._near or stamps[0]
        first = self._near_ns + _elapsed_ns(near, stamps[0])
        # Each against the first: within a batch, which is what is subtracted from each other.
        return [first, *(first + _elapsed_ns(stamps[0], stamp) for stamp in stamps[1:])]

    def move_to(self, stamp: Stamp, said_ns: int) -> Stamp | None:
        """What is read next is held against ``stamp``; returns the one that is so no longer."""
        before, self._near, self._near_ns = self._near, stamp, said_ns
        return before


def bounds_of(stamps: Sequence[Stamp], said_ns: Sequence[int]) -> Bounds:
    """What stamps say of host clock less device clock."""
    pairs = [*zip(stamps, said_ns, strict=True)]
    return Bounds(
        max(stamp.host_ns - said for stamp, said in pairs),
        min(stamp.seen_ns - said for stamp, said in pairs),
    )


def _elapsed_ns(begin: Stamp, end: Stamp) -> int:
    return 0 if begin is end else round(begin.event.elapsed_time(end.event) * 1e6)
