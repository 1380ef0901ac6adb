"""Calls of psutil whose failures become absent readings. Only the agent imports this module.

Host readings come from psutil where it is exact and cheap. A module that reads ``/proc`` or
``/sys`` itself states the reason.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import psutil

_log = logging.getLogger("otel_mlperf.sensors")
_logged: Final[set[str]] = set()


def read_psutil(function: str, *arguments: object, **options: object) -> Any | None:
    """Return the result of a function of psutil; None if it fails, logged once.

    The function is passed by name, because some are missing on some systems.
    """
    try:
        return getattr(psutil, function)(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - psutil raises whatever a file that lacks a line makes of it
        if function not in _logged:
            _logged.add(function)
            _log.info("psutil.%s failed: %r; readings of this call are missing", function, error)
        return None


def uptime_s() -> float:
    """Return the seconds since the start of the host, including the time that it was suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - float(psutil.boot_time())
