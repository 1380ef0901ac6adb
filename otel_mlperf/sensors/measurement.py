"""Measurements of sensors, the levels of readings, and the interface of a sensor."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, Protocol

Level = Literal["basic", "detailed", "comprehensive"]
LEVELS: Final[tuple[Level, ...]] = ("basic", "detailed", "comprehensive")
"""Each level includes those before it."""


def includes(level: Level, needed: Level) -> bool:
    """Return whether ``level`` includes the readings of level ``needed``."""
    return LEVELS.index(needed) <= LEVELS.index(level)


class Measurement(NamedTuple):
    """Measurement: one value at one moment; what cannot be read is absent, never zero."""

    metric: str
    """Name of a ``Metric`` in ``names``."""
    labels: dict[str, str]
    value: float
    pid: int = 0
    """Process of the value; 0: of the host or of a device."""
    device: str = ""
    """``hw.id`` of the device of the value (a GPU's UUID); empty: no device."""
    text: str = ""
    """For the losses of a device: why it does not answer now; empty: it answers."""


class Sensor(Protocol):
    """Interface of a sensor, which can be read repeatedly and cheaply."""

    def read(self) -> list[Measurement]:
        """Return the current measurements.

        It never raises for what a machine may lack, and logs that once.
        """

    def close(self) -> None:
        """Release files and libraries."""
