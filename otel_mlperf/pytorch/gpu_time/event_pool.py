"""Which CUDA events are free to be recorded?

An event belongs to the device on which it was first recorded, so there is a pool for each. It grows
to its limit and no further: who finds none goes without, and nobody waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

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
