"""CUDA events of one device: the pool of free events, and the clock derived from them.

Events report only the distance between two of them, in milliseconds of 24 bits: for exact times
each event is compared with a near one. Stamps of a batch are compared with the last stamp of the
batch before. The sum of these distances is the device's clock, which starts at 0. Its offset to
the host's clock is known within bounds, without waiting: the device cannot pass a stamp before it
is recorded, and has passed it when it reports so.

An event belongs to the device on which it was first recorded, so each device has a pool. A pool
grows to its limit; a caller that finds no free event continues without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


MOST_EVENTS: Final = 1024
"""On one device: 80 steps with five sections each that it has still to come to."""


class EventPool:
    """The events of one recording.

    Args:
        make: makes an event that tells times.
        most: events of one device.
    """

    def __init__(self, make: Callable[[], Any], most: int = MOST_EVENTS) -> None:
        self._make, self._most = make, most
        self._free: dict[int, list[Any]] = {}
        self._made: dict[int, int] = {}

    def take(self, device: int) -> Any:
        """An event that nobody waits for; None: all of the device's are under way."""
        free = self._free.get(device)
        if free:
            return free.pop()
        made = self._made.get(device, 0)
        if made >= self._most:
            return None
        self._made[device] = made + 1
        return self._make()

    def give(self, device: int, event: Any) -> None:
        """One may be recorded again: the device has passed it, and its time was read."""
        self._free.setdefault(device, []).append(event)


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
