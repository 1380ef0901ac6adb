"""CUDA events of one device: the pool of free events, and the clock derived from them.

CUDA reports only the time between two events, in milliseconds with 24 significant bits. For exact
times, only events close to each other are compared: the first stamp of a batch with the last stamp
of the previous batch, and the other stamps with the first. The sum of these distances is the device
clock, which starts at 0. The offset of this clock to the host clock is bounded without waiting: the
device passes a stamp after the host has recorded it, and before the host finds it passed.

An event belongs to the device that first recorded the event, so each device has a pool. A pool
grows up to its limit; a caller that finds no free event continues without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


MAX_EVENTS: Final = 1024
"""Maximum number of events per device: enough for 80 pending steps with five sections each."""


class EventPool:
    """Pool of the CUDA events of one recording.

    Args:
        make: creates an event that records times.
        most: maximum number of events per device.
    """

    def __init__(self, make: Callable[[], Any], most: int = MAX_EVENTS) -> None:
        self._make, self._most = make, most
        self._free: dict[int, list[Any]] = {}
        self._made: dict[int, int] = {}

    def take(self, device: int) -> Any:
        """Return an event that is not in use; None if all events of the device are in use."""
        free = self._free.get(device)
        if free:
            return free.pop()
        made = self._made.get(device, 0)
        if made >= self._most:
            return None
        self._made[device] = made + 1
        return self._make()

    def give(self, device: int, event: Any) -> None:
        """Put an event back into the pool.

        The caller must have read the event's time, which is possible only after the device has
        passed the event.
        """
        self._free.setdefault(device, []).append(event)


class Stamp:
    """CUDA event recorded in a stream, with its host times."""

    __slots__ = ("event", "host_ns", "is_dropped", "place", "seen_ns")

    def __init__(self, event: Any, place: tuple[int, int], host_ns: int) -> None:
        self.event, self.place = event, place
        """Device, and handle of the stream, in which the event was recorded."""
        self.host_ns = host_ns
        """Host time by the monotonic clock, just before the event was recorded."""
        self.seen_ns = 0
        """Host time at which the event was first found passed; 0: not yet."""
        self.is_dropped = False
        """Whether the stamp's time is no longer needed."""


class Bounds(NamedTuple):
    """Lower and upper bound of the host clock minus the device clock, in ns."""

    low: int
    high: int


class DeviceClock:
    """Clock of one device, derived from its stamps."""

    def __init__(self) -> None:
        self._near: Stamp | None = None
        self._near_ns = 0

    def read(self, stamps: Sequence[Stamp]) -> list[int]:
        """Return the device time at each stamp, in ns. The device must have passed all stamps."""
        near = self._near or stamps[0]
        first = self._near_ns + _elapsed_ns(near, stamps[0])
        # Compared with the first stamp of the batch: short distances are exact.
        return [first, *(first + _elapsed_ns(stamps[0], stamp) for stamp in stamps[1:])]

    def move_to(self, stamp: Stamp, said_ns: int) -> Stamp | None:
        """Make ``stamp``, whose device time is ``said_ns``, the reference of future readings.

        Return the previous stamp, so that the caller can reuse the stamp's event; None if this is
        the first call.
        """
        before, self._near, self._near_ns = self._near, stamp, said_ns
        return before


def bounds_of(stamps: Sequence[Stamp], said_ns: Sequence[int]) -> Bounds:
    """Return the bounds of host clock minus device clock.

    ``said_ns``: device time at each stamp, in ns.
    """
    pairs = [*zip(stamps, said_ns, strict=True)]
    return Bounds(
        max(stamp.host_ns - device_ns for stamp, device_ns in pairs),
        min(stamp.seen_ns - device_ns for stamp, device_ns in pairs),
    )


def _elapsed_ns(begin: Stamp, end: Stamp) -> int:
    return 0 if begin is end else round(begin.event.elapsed_time(end.event) * 1e6)
