"""A warning at exit if the program used ``span()`` and the like without ``start()``.

It is logged once per job. It is omitted where a setting switches recording off, because that is
intended. Objects that are used while nothing is recorded report their first use here, so that a
disabled span has no extra cost.
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
    """The first use while nothing was recorded, and its process."""

    call = ""
    pid = 0
    is_started = False
    is_left_out = False
    """Whether ``start()`` was called as a child process imported the program."""


def note_use(call: str) -> None:
    """Note a use while nothing is recorded; ``call`` is the call as the program writes it."""
    if _Use.is_left_out and call.startswith("step"):  # no worker of a loader makes steps
        warn_once(_LEFT_OUT, call)
    if not _Use.call and not _Use.is_started:
        _Use.call, _Use.pid = call, os.getpid()
        atexit.register(_tell)


def note_left_out() -> None:
    """Note that a child process that only imports the program has requested a run."""
    _Use.is_left_out = True


def note_start() -> None:
    """Note that the program has requested a run: whatever its outcome, it needs no hint."""
    _Use.is_started = True
    atexit.unregister(_tell)


def _tell() -> None:
    try:
        # One process of a job: neither its workers nor its other ranks.
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
