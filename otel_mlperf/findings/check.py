"""What does a check say: what was found, and what to do about it?"""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["FAIL", "warn", "ok"]
LEVELS: tuple[Level, ...] = ("FAIL", "warn", "ok")


class Check(msgspec.Struct, frozen=True):
    """One line of ``doctor``."""

    level: Level
    what: str
    found: str
    do: str = ""


def worst_first(checks: list[Check]) -> list[Check]:
    """Failures before warnings before what is well; else in the given order."""
    return sorted(checks, key=lambda check: LEVELS.index(check.level))
