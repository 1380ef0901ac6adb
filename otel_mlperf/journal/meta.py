"""Metadata of a journal: the process that writes it, and whether that process is still alive.

The process has a POSIX record lock on the file from the start. The kernel drops the lock with the
process, and no child inherits it. A query does not affect the lock, whichever descriptor is used.
But the kernel also drops the lock when the process closes any descriptor of the file
(``os.closerange``): without a lock the mappings of the process show whether it still writes. In
portable mode the mappings are unknown; there a process with that pid counts if it is at least as
old as the journal.
"""

from __future__ import annotations

import importlib
import os
import struct
from contextlib import suppress
from typing import Any

import msgspec

from otel_mlperf.portability import IS_PORTABLE

with suppress(ImportError):  # Windows, where nothing is recorded
    import fcntl
_LOCK = "hhqqi"
"""``struct flock``: type, whence, start, length, pid."""
LONGEST_RUN_NS = 10 * 365 * 86_400 * 10**9
MAX_BACKDATE_NS = 3600 * 10**9
"""How long before the journal was made something in it may have started."""


class JournalMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Facts fixed when the journal is made; stored in its header as MessagePack."""

    run_id: str
    run_name: str
    run_folder: str
    """Absolute path of the run folder."""
    run_key: str | None = None
    """As in the run's ``run.json``; None: the journal is of an earlier version."""
    service: str
    host: str
    pid: int
    thread: int = 0
    """The kernel's id of the thread in which the run started, and its loop runs; 0: unknown."""
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    restart: int = 0
    run_span: int
    """Span id of the run's section in this process (in a forked child: its parent's)."""
    is_child: bool = False
    """Whether a forked child of a rank wrote it: it has no run section of its own."""
    monotonic_ns: int
    """Both clocks read together at the start: the anchor that turns row times into Unix time."""
    unix_ns: int
    cost_ns: int = 0
    """Measured cost of one section in this process."""
    resource: dict[str, str | int | float | bool] = {}
    """Further resource attributes (OTEL_RESOURCE_ATTRIBUTES)."""
    visible: dict[str, str] = {}
    """Variables that defined at the start which GPUs the process sees."""

    @property
    def shift_ns(self) -> int:
        """Unix time minus the monotonic clock, at the start.

        All conversions of row times to Unix times use this value. It is never read again, so that a
        step of the system's clock distorts no trace.
        """
        return self.unix_ns - self.monotonic_ns

    @property
    def earliest_ns(self) -> int:
        """A monotonic time before which nothing in the journal started."""
        return max(0, self.monotonic_ns - MAX_BACKDATE_NS)

    @property
    def latest_ns(self) -> int:
        """A monotonic time that nothing in the journal reaches, unless it was overwritten."""
        return self.monotonic_ns + LONGEST_RUN_NS

    def unix_time(self, monotonic_ns: int) -> int:
        """Return a row time as Unix time; at least 0, because the wire format is unsigned."""
        return max(0, monotonic_ns + self.shift_ns)


def has_owner(fd: int, pid: int) -> bool:
    """Return whether the process that made the open journal, ``pid`` by its header, is alive.

    A process that was replaced by another program (``exec``) is not: its mappings are gone.
    """
    # Locks of the calling process itself are never reported: it must not be the owner.
    if IS_PORTABLE:
        return _is_locked(fd) or (pid != os.getpid() and _is_as_old(fd, pid))
    # F_GETLK is only a query.
    ask = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, *_ = struct.unpack(_LOCK, fcntl.fcntl(fd, fcntl.F_GETLK, ask))
    return bool(kind != fcntl.F_UNLCK) or (pid != os.getpid() and _is_mapped(fd, pid))


def _is_locked(fd: int) -> bool:
    """Return whether another process has a lock on the file, without the layout of F_GETLK."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.lockf(fd, fcntl.LOCK_UN)
    return False


def _is_as_old(fd: int, pid: int) -> bool:
    """Return whether process ``pid`` is alive, and existed when the file was made."""
    # By name: the recorder, which writes journals, must not load psutil.
    psutil: Any = importlib.import_module("psutil")
    about = os.fstat(fd)
    try:
        process = psutil.Process(pid)
        made_s = getattr(about, "st_birthtime", about.st_ctime)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= made_s)
    except psutil.Error:
        return False


def _is_mapped(fd: int, pid: int) -> bool:
    """Return whether process ``pid`` of this PID namespace maps the file: 2 ms where it does."""
    about = os.fstat(fd)
    device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}"
    wanted = f" {device} {about.st_ino} ".encode()
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return any(wanted in line for line in maps)
    except OSError:
        return False
