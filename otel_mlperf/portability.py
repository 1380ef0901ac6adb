"""Portable mode, for systems without ``/proc`` and ``/dev/shm``, and portable system calls.

Portable mode is used on all systems other than Linux, on Linux without ``/proc``, and in tests if
an environment variable forces it. Journals are then plain files in the user's temporary folder, and
readings that only the Linux kernel provides are absent. On Windows runs can be read, but not
recorded.
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
"""Whether the system is Windows, where nothing is recorded, and folders have no descriptors."""
NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
"""Flag of ``os.open`` (like ``NONBLOCK``); 0 on Windows, which does not support it."""
NONBLOCK: Final[int] = getattr(os, "O_NONBLOCK", 0)
CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", getattr(os, "O_BINARY", 0))
"""Flag for all files that this package opens; on Windows, the flag for binary mode instead."""


def shared_memory() -> str:
    """Return the folder for the journals of all runs.

    The folder is ``/dev/shm`` (in memory) or, in portable mode, the user's temporary folder.
    """
    # tempfile.gettempdir() is not used: it writes a test file, and raises if this fails.
    return (os.environ.get("TMPDIR") or "/tmp") if IS_PORTABLE else "/dev/shm"


def host_name() -> str:
    """Return the name of this machine; empty if it is unknown."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def user_id() -> int:
    """Return the user id of this process; 0 on Windows, where files have no owner id either."""
    return os.getuid() if hasattr(os, "getuid") else 0


def open_descriptors() -> list[int]:
    """Return the numbers of descriptors that might be open; 0 to 1023 if the system lists none."""
    try:
        return [int(name) for name in os.listdir("/dev/fd" if IS_PORTABLE else "/proc/self/fd")]
    except OSError:
        return list(range(1024))


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, or of all CPUs if that is unknown."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_at(fd: int, size: int, position: int) -> bytes:
    """Read up to ``size`` bytes of a file from ``position``, as ``os.pread``, also on Windows."""
    if hasattr(os, "pread"):
        return os.pread(fd, size, position)
    before = os.lseek(fd, 0, os.SEEK_CUR)
    try:
        os.lseek(fd, position, os.SEEK_SET)
        return os.read(fd, size)
    finally:
        os.lseek(fd, before, os.SEEK_SET)


def allocate(fd: int, size: int) -> None:
    """Allocate ``size`` bytes on disk for a new file that will be mapped into memory.

    Otherwise writing to the mapping on a full disk would raise SIGBUS.

    Raises:
        OSError: the disk is full.
    """
    if not IS_PORTABLE:
        os.posix_fallocate(fd, 0, size)
        return
    zeros = bytes(1 << 20)
    for at in range(0, size, len(zeros)):
        os.pwrite(fd, zeros[: size - at], at)
