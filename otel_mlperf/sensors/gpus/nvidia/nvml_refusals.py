"""What does a GPU not offer, and when has it gone altogether?

What NVML refuses for a reason that stays (not supported, no permission) is not asked again, which
is said once; what fails without a reason is asked again after five minutes.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

_log = logging.getLogger("otel_mlperf.sensors")

UNKNOWN_S: Final = 300.0

INVALID_ARGUMENT: Final = 2
UNKNOWN: Final = 999
STAYS: Final = frozenset({INVALID_ARGUMENT, 3, 4, 13, 22, 25, 26})
"""Also not supported, no permission, no such function, and their relatives."""
GONE: Final = frozenset({1, 9, 10, 15, 16, 28})
"""Uninitialized, no driver, timeout, lost, reset required, not found."""


class Refusals:
    """What one GPU has refused, by the name of the question."""

    def __init__(self, nvml: ModuleType, uuid: str, said: set[str]) -> None:
        """``said`` holds what the log has been told, which outlives a GPU that comes back."""
        self._nvml = nvml
        self._uuid = uuid
        self._said = said
        self._off_until_s: dict[str, float] = {}
        self._has_answered: set[str] = set()
        self._unsaid: dict[str, list[str]] = {}

    def is_on(self, name: str, now_s: float) -> bool:
        """Whether ``name`` is worth asking for."""
        return now_s >= self._off_until_s.get(name, -math.inf)

    def answered(self, name: str) -> None:
        """Notes that the GPU has given ``name``."""
        self._has_answered.add(name)

    def give_up(self, name: str) -> None:
        """Never asks for ``name`` again."""
        self._off_until_s[name] = math.inf

    def refused(self, name: str, code: int, now_s: float) -> None:
        """Notes that ``name`` failed with ``code``.

        Raises:
            NVMLError: The GPU itself has gone. An argument that was valid before and is not now is
                its handle, after a reset.
        """
        if code in GONE or (code == INVALID_ARGUMENT and name in self._has_answered):
            raise self._nvml.NVMLError(code)
        if code in STAYS:
            self.give_up(name)
        elif code == UNKNOWN:
            self._off_until_s[name] = now_s + UNKNOWN_S
        else:
            return
        if f"{self._uuid} {name}" not in self._said:
            self._said.add(f"{self._uuid} {name}")
            self._unsaid.setdefault(str(self._nvml.NVMLError(code)), []).append(name)

    def say(self) -> None:
        """Tells the log what was refused for the first time, in one line."""
        if self._unsaid:
            reasons = "; ".join(
                f"{', '.join(names)} ({why})" for why, names in self._unsaid.items()
            )
            _log.info("GPU %s does not give: %s", self._uuid, reasons)
            self._unsaid.clear()
