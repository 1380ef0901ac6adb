"""Measurements of sensors, the levels of readings, and the interface of a sensor."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, Protocol

Level = Literal["basic", "detailed", "comprehensive"]
LEVELS: Final[tuple[Level, ...]] = ("basic", "detailed", "comprehensive")
"""Levels of readings, in ascending order: each level includes all previous levels."""


def includes(level: Level, needed: Level) -> bool:
    """Return whether ``level`` includes the readings of level ``needed``."""
    return LEVELS.index(needed) <= LEVELS.index(level)


class Measurement(NamedTuple):
    """Value of a metric at one moment. An unreadable value is omitted, not reported as zero."""

    metric: str
    """Name of a ``Metric`` in ``names``."""
    labels: dict[str, str]
    value: float
    pid: int = 0
    """Id of the measured process; 0 if the value belongs to the host or a device."""
    device: str = ""
    """``hw.id`` of the measured device (a GPU's UUID); empty if the value belongs to no device."""
    text: str = ""
    """Only for device losses: the reason why the device does not respond; empty if it responds."""


class Sensor(Protocol):
    """Interface of a sensor; ``read`` is called repeatedly and must be cheap."""

    def read(self) -> list[Measurement]:
        """Return the current measurements.

        Data that is not available on a machine must not raise an error, but is logged once.
        """

    def close(self) -> None:
        """Release files and libraries."""
