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
"""Then nothing is recorded, and no folder has a descriptor by which files in it are opened."""
NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
"""Flags of ``os.open``; 0 on Windows, which has none of them."""
NONBLOCK: Final[int] = getattr(os, "O_NONBLOCK", 0)
CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", getattr(os, "O_BINARY", 0))
"""Of every file that is ours; on Windows the flag by which bytes are read as they are."""


def shared_memory() -> str:
    """The folder for journals of all runs: memory on Linux, else the user's temporary folder."""
    # Not as tempfile finds it: that writes a file first, and raises where it cannot.
    return (os.environ.get("TMPDIR") or "/tmp") if IS_PORTABLE else "/dev/shm"


def host_name() -> str:
    """The name of this machine."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def user_id() -> int:
    """The number of this user; 0 on Windows, where files have no owner's number either."""
    return os.getuid() if hasattr(os, "getuid") else 0


def open_descriptors() -> list[int]:
    """Descriptors that may be open here; the first thousand numbers where no folder lists them."""
    try:
        return [int(name) for name in os.listdir("/dev/fd" if IS_PORTABLE else "/proc/self/fd")]
    except OSError:
        return list(range(1024))


def usable_cpus() -> int:
    """CPUs that this process may use, as far as the system says."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_at(fd: int, size: int, position: int) -> bytes:
    """A part of a file, as ``os.pread`` reads it, which Windows lacks."""
    if hasattr(os, "pread"):
        return os.pread(fd, size, position)
    before = os.lseek(fd, 0, os.SEEK_CUR)
    try:
        os.lseek(fd, position, os.SEEK_SET)
        return os.read(fd, size)
    finally:
        os.lseek(fd, before, os.SEEK_SET)


def allocate(fd: int, size: int) -> None:
    """Give a new file ``size`` bytes that need no room later: a store without room is a SIGBUS.

    Raises:
        OSError: there is no room.
    """
    if not IS_PORTABLE:
        os.posix_fallocate(fd, 0, size)
        return
    zeros = bytes(1 << 20)
    for at in range(0, size, len(zeros)):
        os.pwrite(fd, zeros[: size - at], at)
