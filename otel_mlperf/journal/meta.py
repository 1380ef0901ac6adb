"""Metadata of a journal, and the check whether the process that writes it is still alive.

The process has a POSIX record lock on the file. The kernel releases the lock when the process ends,
and child processes do not inherit it. Querying the lock does not affect the lock. However, the
kernel also releases the lock when the process closes any descriptor of the file (e.g.
``os.closerange``). If there is no lock, the memory mappings of the process therefore decide. In
portable mode, mappings are unknown: the process counts as alive if a process with its pid is at
least as old as the journal.
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
"""Format of ``struct flock``: type, whence, start, length, pid."""
LONGEST_RUN_NS = 10 * 365 * 86_400 * 10**9
MAX_BACKDATE_NS = 3600 * 10**9
"""Maximum time by which a recorded start may precede the creation of the journal."""


class JournalMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are fixed when a journal is created, stored in its header as MessagePack."""

    run_id: str
    run_name: str
    run_folder: str
    """Absolute path of the run folder."""
    run_key: str | None = None
    """Key in the run's ``run.json``; None if an earlier version has written the journal."""
    service: str
    host: str
    pid: int
    thread: int = 0
    """Native id of the thread in which the run was started and its loop runs; 0 if unknown."""
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    restart: int = 0
    run_span: int
    """Span id of the run's section in this process. In a forked child: the span id in the parent
    process."""
    is_child: bool = False
    """Whether a forked child of a rank writes the journal. A child has no run section of its
    own."""
    monotonic_ns: int
    """Monotonic clock at the start, read together with ``unix_ns`` to convert row times."""
    unix_ns: int
    cost_ns: int = 0
    """Measured cost of recording one section in this process, in ns."""
    resource: dict[str, str | int | float | bool] = {}
    """Further OpenTelemetry resource attributes (OTEL_RESOURCE_ATTRIBUTES)."""
    visible: dict[str, str] = {}
    """Environment variables at the start that determine which GPUs the process sees."""

    @property
    def shift_ns(self) -> int:
        """Unix time minus monotonic time in ns, at the start.

        All conversions of row times use this value, so that a later change of the system clock does
        not distort traces.
        """
        return self.unix_ns - self.monotonic_ns

    @property
    def earliest_ns(self) -> int:
        """Monotonic time before which no recorded section can have started."""
        return max(0, self.monotonic_ns - MAX_BACKDATE_NS)

    @property
    def latest_ns(self) -> int:
        """Upper limit of valid recorded times, monotonic ns; later times were overwritten."""
        return self.monotonic_ns + LONGEST_RUN_NS

    def unix_time(self, monotonic_ns: int) -> int:
        """Convert monotonic ns of a row to Unix ns; at least 0, because OTLP times are unsigned."""
        return max(0, monotonic_ns + self.shift_ns)


def has_owner(fd: int, pid: int) -> bool:
    """Return whether the process that created the journal is alive.

    ``fd`` is a descriptor of the journal file, ``pid`` is from the journal's header.

    A process that was replaced with another program (``exec``) is not alive in this sense.
    """
    # Must not be called by the owner: locks of the calling process itself are never reported.
    if IS_PORTABLE:
        return _is_locked(fd) or (pid != os.getpid() and _is_as_old(fd, pid))
    # F_GETLK only queries the lock.
    query = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, *_ = struct.unpack(_LOCK, fcntl.fcntl(fd, fcntl.F_GETLK, query))
    return bool(kind != fcntl.F_UNLCK) or (pid != os.getpid() and _is_mapped(fd, pid))


def _is_locked(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.lockf(fd, fcntl.LOCK_UN)
    return False


def _is_as_old(fd: int, pid: int) -> bool:
    # Imported here, because the recorder, which also uses this module, must not load psutil.
    psutil: Any = importlib.import_module("psutil")
    about = os.fstat(fd)
    try:
        process = psutil.Process(pid)
        made_s = getattr(about, "st_birthtime", about.st_ctime)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= made_s)
    except psutil.Error:
        return False


def _is_mapped(fd: int, pid: int) -> bool:
    """Return whether process ``pid`` in this PID namespace maps the file. Costs about 2 ms."""
    about = os.fstat(fd)
    device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}"
    wanted = f" {device} {about.st_ino} ".encode()
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return any(wanted in line for line in maps)
    except OSError:
        return False
