"""Measurements of sensors, the levels of readings, and the interface of a sensor."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, Protocol

Level = Literal["basic", "detailed", "comprehensive"]
LEVELS: Final[tuple[Level, ...]] = ("basic", "detailed", "comprehensive")
"""Each holds what those before it hold."""


def includes(level: Level, needed: Level) -> bool:
    """Whether who asked for ``level`` gets what belongs to ``needed``."""
    return LEVELS.index(needed) <= LEVELS.index(level)


class Measurement(NamedTuple):
    """One value at one moment; what cannot be read is absent, never zero."""

    metric: str
    """Name of a ``Metric`` in ``names``."""
    labels: dict[str, str]
    value: float
    pid: int = 0
    """The process that it is of; 0: of the host or of a device."""
    device: str = ""
    """``hw.id`` of the device that it is of (a GPU's UUID); empty: none."""
    text: str = ""
    """Of the losses of a device: why it does not answer now; empty: it does."""


class Sensor(Protocol):
    """Something that can be read again and again, cheaply."""

    def read(self) -> list[Measurement]:
        """What it says now. Never raises for what a machine may lack; says that once in the log."""

    def close(self) -> None:
        """Gives back files and libraries."""
