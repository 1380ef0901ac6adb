"""The switch of portable mode: recording where there is no ``/proc`` and no ``/dev/shm``.

Every system but Linux is recorded in this mode, and a Linux without ``/proc``. A variable forces it
elsewhere, for tests of portability. Journals are then plain files of the user's temporary folder,
and readings that only the Linux kernel provides are absent. On Windows nothing is recorded; runs
can be read there.
"""

from __future__ import annotations

import os
import sys
from typing import Final

VARIABLE: Final = "OTEL_MLPERF_PORTABLE"
IS_PORTABLE: Final = (
    not sys.platform.startswith("linux")
    or os.environ.get(VARIABLE) == "1"
    or not os.path.exists("/proc/self/fd")
)
IS_WINDOWS: Final = sys.platform == "win32"
"""On Windows nothing is recorded, and no folder has a descriptor by which files in it are opened.
"""
NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
"""Flags of ``os.open``; 0 on Windows, which lacks them."""
NONBLOCK: Final[int] = getattr(os, "O_NONBLOCK", 0)
CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", getattr(os, "O_BINARY", 0))
"""Flag of every file of ours; on Windows the flag by which bytes are read unchanged."""


def shared_memory() -> str:
    """Return the folder for journals of all runs.

    It is memory on Linux, otherwise the user's temporary folder.
    """
    # Not as tempfile finds it: that writes a file first, and raises where it cannot.
    return (os.environ.get("TMPDIR") or "/tmp") if IS_PORTABLE else "/dev/shm"


def host_name() -> str:
    """Return the name of this machine."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def user_id() -> int:
    """Return the number of this user; 0 on Windows, where files have no owner's number either."""
    return os.getuid() if hasattr(os, "getuid") else 0


def open_descriptors() -> list[int]:
    """Return descriptors that may be open; the first thousand numbers if no folder lists them."""
    try:
        return [int(name) for name in os.listdir("/dev/fd" if IS_PORTABLE else "/proc/self/fd")]
    except OSError:
        return list(range(1024))


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, as far as the system reports it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_at(fd: int, size: int, position: int) -> bytes:
    """Read a part of a file as ``os.pread`` does, which Windows lacks."""
    if hasattr(os, "pread"):
        return os.pread(fd, size, position)
    before = os.lseek(fd, 0, os.SEEK_CUR)
    try:
        os.lseek(fd, position, os.SEEK_SET)
        return os.read(fd, size)
    finally:
        os.lseek(fd, before, os.SEEK_SET)


def allocate(fd: int, size: int) -> None:
    """Allocate ``size`` bytes for a new file. A store without room would be a SIGBUS.

    Raises:
        OSError: there is no room.
    """
    if not IS_PORTABLE:
        os.posix_fallocate(fd, 0, size)
        return
    zeros = bytes(1 << 20)
    for at in range(0, size, len(zeros)):
        os.pwrite(fd, zeros[: size - at], at)
