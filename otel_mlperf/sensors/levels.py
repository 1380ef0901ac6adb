"""How much does a sensor say?"""

from __future__ import annotations

from typing import Final, Literal

Level = Literal["basic", "detailed", "comprehensive"]
LEVELS: Final[tuple[Level, ...]] = ("basic", "detailed", "comprehensive")
"""Each holds what those before it hold."""


def includes(level: Level, needed: Level) -> bool:
    """Whether who asked for ``level`` gets what belongs to ``needed``."""
    return LEVELS.index(needed) <= LEVELS.index(level)
