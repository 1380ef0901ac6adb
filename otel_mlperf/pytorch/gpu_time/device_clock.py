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
"""Maximum number on one device: 80 pending steps with five sections each."""


class EventPool:
    """Pool of the CUDA events of one recording.

    Args:
        make: makes an event that records times.
        most: maximum number of events of one device.
    """

    def __init__(self, make: Callable[[], Any], most: int = MOST_EVENTS) -> None:
        self._make, self._most = make, most
        self._free: dict[int, list[Any]] = {}
        self._made: dict[int, int] = {}

    def take(self, device: int) -> Any:
        """Return an event that is not in use; None: all events of the device are in use."""
        free = self._free.get(device)
        if free:
            return free.pop()
        made = self._made.get(device, 0)
        if made >= self._most:
            return None
        self._made[device] = made + 1
        return self._make()

    def give(self, device: int, event: Any) -> None:
        """Return an event to the pool: the device has passed it, and its time was read."""
        self._free.setdefault(device, []).append(event)


class Stamp:
    """Stamp: one event among the work of a stream."""

    __slots__ = ("event", "host_ns", "is_dropped", "place", "seen_ns")

    def __init__(self, event: Any, place: tuple[int, int], host_ns: int) -> None:
        self.event, self.place = event, place
        """Device, and the handle of its stream."""
        self.host_ns = host_ns
        """Host time by the monotonic clock, just before the event was passed to the device."""
        self.seen_ns = 0
        """Time at which it was first found passed; 0: not yet."""
        self.is_dropped = False
        """Whether its time is not needed any more."""


class Bounds(NamedTuple):
    """Bounds of the host clock minus the device clock, in ns."""

    low: int
    high: int


class DeviceClock:
    """Clock of one device."""

    def __init__(self) -> None:
        self._near: Stamp | None = None
        self._near_ns = 0

    def read(self, stamps: Sequence[Stamp]) -> list[int]:
        """Return the clock's reading at each of the stamps, in ns; all have been passed."""
        near = self._near or stamps[0]
        first = self._near_ns + _elapsed_ns(near, stamps[0])
        # Each stamp is compared with the first: differences are formed within a batch.
        return [first, *(first + _elapsed_ns(stamps[0], stamp) for stamp in stamps[1:])]

    def move_to(self, stamp: Stamp, said_ns: int) -> Stamp | None:
        """Compare future readings with ``stamp``; return the stamp that is no longer needed."""
        before, self._near, self._near_ns = self._near, stamp, said_ns
        return before


def bounds_of(stamps: Sequence[Stamp], said_ns: Sequence[int]) -> Bounds:
    """Return the bounds that stamps give for the host clock minus the device clock."""
    pairs = [*zip(stamps, said_ns, strict=True)]
    return Bounds(
        max(stamp.host_ns - said for stamp, said in pairs),
        min(stamp.seen_ns - said for stamp, said in pairs),
    )


def _elapsed_ns(begin: Stamp, end: Stamp) -> int:
    return 0 if begin is end else round(begin.event.elapsed_time(end.event) * 1e6)
