"""psutil calls that return None on failure, so that readings are absent.

Only the agent imports this module. Host readings use psutil if it is accurate and cheap. Modules
that read ``/proc`` or ``/sys`` directly state the reason.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import psutil

_log = logging.getLogger("otel_mlperf.sensors")
_logged: Final[set[str]] = set()


def read_psutil(function: str, *arguments: object, **options: object) -> Any | None:
    """Return the result of a psutil function; None if the call fails (logged once per function).

    The function is passed by name, because some functions are missing on some systems.
    """
    try:
        return getattr(psutil, function)(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - psutil raises whatever a file that lacks a line makes of it
        if function not in _logged:
            _logged.add(function)
            _log.info("psutil.%s failed: %r; readings of this call are missing", function, error)
        return None


def uptime_s() -> float:
    """Return the seconds since the start of the host, including the time in suspend."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - float(psutil.boot_time())
