"""Warning at exit if the program used ``span()`` and the like without ``start()``.

It is logged by one process of a job, and omitted if a setting disables recording. Objects that are
used while nothing is recorded report only their first use, so that later uses have no extra cost.
"""

from __future__ import annotations

import atexit
import os
import sys

from otel_mlperf.errors import ConfigError
from otel_mlperf.recorder.core.faults import internal_error, log, warn_once
from otel_mlperf.recorder.lifecycle.run_identity import detect_identity
from otel_mlperf.settings.load_config import load_config

_TEXT = (
    "%s ran, but no run was started: nothing was recorded. Call start() first, or run the "
    "script as 'otel-mlperf run SCRIPT'; if this is intended, set OTEL_SDK_DISABLED=true"
)
_LEFT_OUT = (
    "%s in a child process of multiprocessing: nothing is recorded there. start() at the top of a "
    "module records only in the first process: call start() in the function that the child runs"
)


class _Use:
    """First use while nothing was recorded: the call and its process."""

    call = ""
    pid = 0
    is_started = False
    is_left_out = False
    """Whether a child process called ``start()`` while it imported the main module."""


def note_use(call: str) -> None:
    """Register a use while nothing is recorded; ``call`` is its text, e.g. ``steps()``."""
    if _Use.is_left_out and call.startswith("step"):  # unlike a loader's worker, this child trains
        warn_once(_LEFT_OUT, call)
    if not _Use.call and not _Use.is_started:
        _Use.call, _Use.pid = call, os.getpid()
        atexit.register(_warn)


def note_left_out() -> None:
    """Register that a child process called ``start()`` while it imported the main module."""
    _Use.is_left_out = True


def note_start() -> None:
    """Register a call of ``start()``, after which the warning is never needed, even if it fails."""
    _Use.is_started = True
    atexit.unregister(_warn)


def _warn() -> None:
    try:
        # Only in one process of a job: not in workers, and not in ranks other than 0.
        if os.getpid() != _Use.pid or _is_worker() or detect_identity("any", {}).rank:
            return
        settings = load_config()
        if settings.console and not settings.disabled:
            log.warning(_TEXT, _Use.call)
    except ConfigError:
        return  # a run would have reported it
    except Exception as error:  # noqa: BLE001 - the program ends as it would
        internal_error(error)


def _is_worker() -> bool:
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None
