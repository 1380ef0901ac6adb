"""How does the agent live beside a job without disturbing it, and end after it?"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.model.agent_options import read_options
from otel_mlperf.agent.readings.gpu_visibility import drop_views
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.bulletin import drop_readings
from otel_mlperf.journal.journal_folder import journals_in
from otel_mlperf.journal.journal_reader import Reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.journal.meta import JournalMeta

_log = logging.getLogger("otel_mlperf.agent")
_NICE: Final = 10
_OOM_SCORE: Final = "500"
_LOCK: Final = "agent.lock"
_LOCK_WAIT_S: Final = 3.0
_WAITS_S: Final = (0.1, 1, 2, 5, 10, *([30] * 20))
"""Between attempts at journals that cannot be stored: ten minutes in all."""
_LOG_BYTES: Final = 1 << 20


def serve(folder: Path, environ: Mapping[str, str]) -> int:
    """Reads the journals of ``folder`` until the last has ended; returns an exit code.

    Does nothing where another agent already does it.
    """
    for wait_s in (*_WAITS_S, 0.0):
        with OnlyOne(folder) as is_mine:
            if not is_mine:
                return 0
            _serve_locked(folder, environ)
        # A process may have come while the lock was still ours, and found an agent; or the disk
        # was full and its journal could not be stored.
        if not journals_in(folder) or first_meta(folder) is None:
            remove_if_empty(folder)
            return 0
        time.sleep(wait_s)
    _log.error("giving up: what could not be stored stays in %s for otel-mlperf recover", folder)
    return 1


def _serve_locked(folder: Path, environ: Mapping[str, str]) -> None:
    from otel_mlperf.agent.intake.tail import Tail
    from otel_mlperf.agent.lifecycle.agent_loop import Agent

    meta = first_meta(folder)
    if meta is None:
        return
    agent = Agent(meta, Tail(folder), read_options(environ))
    try:
        agent.run()
    except Exception:
        # Nobody sees a traceback of a process without a terminal.
        if _log.hasHandlers():
            _log.exception("the agent failed; the journals stay for the next one")
        raise


def first_meta(folder: Path) -> JournalMeta | None:
    """Metadata of the first journal that can be read; None if there is none."""
    for path in journals_in(folder):
        try:
            reader = Reader(str(path))
        except JournalError as error:
            _log.info("%s", error)
            continue
        meta = reader.meta
        reader.close()
        return meta
    return None


def is_served(folder: Path) -> bool:
    """Whether an agent holds the folder's lock."""
    with contextlib.suppress(OSError), (folder / _LOCK).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def remove_if_empty(folder: Path) -> None:
    """Removes a journal folder that has no journal any more."""
    if not journals_in(folder):
        with contextlib.suppress(OSError):
            drop_readings(str(folder))
            drop_views(folder)
            (folder / _LOCK).unlink()
            folder.rmdir()


class OnlyOne:
    """Holds the folder's lock; False if another agent keeps it."""

    def __init__(self, folder: Path, lock: str = _LOCK) -> None:
        self._path = folder / lock
        self._fd = -1

    def __enter__(self) -> bool:
        until = time.monotonic() + _LOCK_WAIT_S
        while not self._locks():
            if self._fd < 0 or time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _locks(self) -> bool:
        """Whether it is ours now; a file that its last holder has removed is nobody's."""
        self.__exit__()
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except OSError:
            return False

    def __exit__(self, *error: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def leave_the_job(run_folder: Path, host: str) -> None:
    """Makes this process a quiet neighbour: low priority, every core, first to be killed."""
    os.chdir("/")
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    _log_to(run_folder / "agent" / host / "agent.log")


def _log_to(path: Path) -> None:
    from logging.handlers import RotatingFileHandler

    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler: logging.Handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1)
    except OSError:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("otel_mlperf").addHandler(handler)
    logging.getLogger("otel_mlperf").setLevel(logging.INFO)
