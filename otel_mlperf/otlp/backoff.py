"""When may a failed destination be tried again?"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_S: Final = 1.0
FACTOR: Final = 1.5
MOST_S: Final = 5.0
_LEAST_SHARE: Final = 0.4


class Backoff:
    """Waits that grow from one second to five, each shortened by chance to 40 % at least.

    The chance keeps a thousand agents from returning to a restarted collector at one moment; the
    upper end keeps the first delivery within five seconds of its return. What the server itself
    asks for is a lower bound.
    """

    def __init__(self, chance: Callable[[], float] | None = None) -> None:
        # Never the shared generator: where the agent is a thread, it is the user's.
        self._chance = chance or random.Random().random
        self._failures = 0

    def failed(self, after_s: float | None = None) -> float:
        """Note a failure, after which the server wants ``after_s`` of rest; the seconds to wait."""
        most = min(FIRST_S * FACTOR ** min(self._failures, 16), MOST_S)
        share = _LEAST_SHARE + (1 - _LEAST_SHARE) * self._chance()
        wait = most * share if after_s is None else after_s + most * (share - _LEAST_SHARE)
        self._failures += 1
        return wait

    def succeeded(self) -> None:
        """Note a success: the next failure begins at one second again."""
        self._failures = 0
