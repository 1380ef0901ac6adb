"""Checks of this machine: Python, torch, GPU, shared memory, disk and clock."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mlperf.findings.finding import Check
from otel_mlperf.journal.journal_folder import SHARED_MEMORY, fitting_rows
from otel_mlperf.portability import IS_PORTABLE, IS_WINDOWS

if TYPE_CHECKING:
    from collections.abc import Callable

_ROWS: Final = 131_072
"""Default number of rows of a journal, as in ``Config.rows``."""
_MORE_ROOM: Final = "free disk space, or set OTEL_MLPERF_DIR to another disk"
_MIN_DISK_BYTES: Final = 1 << 30
_NO_ROOM: Final = 1 << 20
_DRIVER: Final = Path("/proc/driver/nvidia/version")
_CLOCK_FROM: Final = 1_704_067_200
"""Start of 2024 as Unix time; a clock that shows an earlier time was never set."""
_UNSYNCHRONISED: Final = 5
"""Return value of adjtimex(2) if the clock is not synchronized (TIME_ERROR)."""


def check_machine(runs_folder: Path, nodes: int) -> list[Check]:
    """Check disk, Python, torch, GPU, shared memory and clock; ``nodes`` is a run's node count."""
    return [
        check_runs_folder(runs_folder),
        check_python(),
        check_torch(),
        check_gpu(_DRIVER),
        check_shared_memory(SHARED_MEMORY),
        check_clock(time.time, clock_state(), nodes),
    ]


def check_python() -> Check:
    """Check the operating system, and report the Python interpreter of this process.

    The path of the interpreter shows which packages were found; the user's program might use
    another interpreter.
    """
    found = f"{platform.python_version()} on {sys.platform} {platform.machine()}, {sys.executable}"
    if IS_WINDOWS:
        return Check(
            "warn", "python", found, "Windows: programs are not recorded, but runs can be read"
        )
    if IS_PORTABLE:
        return Check("warn", "python", found, "portable mode: see docs/troubleshooting.md")
    return Check("ok", "python", found)


def check_torch() -> Check:
    """Check whether torch is installed, without importing it."""
    # Importing torch would take seconds.
    if importlib.util.find_spec("torch") is None:
        return Check("ok", "torch", "not installed; required only to record PyTorch loops")
    try:
        return Check("ok", "torch", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return Check("ok", "torch", "installed, version unknown")


def check_gpu(driver: Path) -> Check:
    """Report the version of the NVIDIA kernel driver, read from its version file ``driver``."""
    try:
        words = driver.read_text().partition("\n")[0].split()
    except OSError:
        return Check("ok", "gpu", "no NVIDIA driver found: all times are host times")
    version = next((word for word in words if word[0].isdigit()), "(version unknown)")
    return Check("ok", "gpu", f"NVIDIA driver {version}; section times are host times")


def check_shared_memory(folder: str) -> Check:
    """Check whether a journal of default size fits into shared memory, mounted at ``folder``."""
    if IS_WINDOWS:
        return Check("ok", "shared memory", "not used on Windows")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return Check(
            "warn", "shared memory", f"{folder} is not writable: journals are stored in the run "
            "folder, where a busy disk can block the program",
            f"make {folder} writable",
        )  # fmt: skip
    room = os.statvfs(folder)
    free = f"{_size(room.f_bavail * room.f_frsize)} free in {folder}"
    rows = fitting_rows(folder, _ROWS)
    if rows < _ROWS:
        return Check(
            "warn", "shared memory", f"{free}: journals have {rows:,} rows instead of {_ROWS:,}",
            "give the container more shared memory (docker run --shm-size=1g)",
        )  # fmt: skip
    return Check("ok", "shared memory", free)


def check_runs_folder(folder: Path) -> Check:
    """Check whether the folder of all runs is writable, and has enough free space."""
    # The first run creates the folder: before, its nearest existing parent is checked.
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check(
            "FAIL",
            "run folder",
            f"{folder} is not writable",
            "set OTEL_MLPERF_DIR to a writable folder",
        )
    return check_room(folder, shutil.disk_usage(existing).free)


def check_room(folder: Path, free: int) -> Check:
    """Check whether ``free``, the free bytes in the folder of all runs, is enough for a run."""
    if free < _NO_ROOM:
        full = f"{folder} has {_size(free)} free: nothing can be stored"
        return Check("FAIL", "run folder", full, _MORE_ROOM)
    found = f"{folder} is writable, {_size(free)} free"
    if free < _MIN_DISK_BYTES:
        return Check("warn", "run folder", found, _MORE_ROOM)
    return Check("ok", "run folder", found)


def check_clock(now: Callable[[], float], state: int | None, nodes: int) -> Check:
    """Check whether the clock is set and, if the run has several nodes, synchronized.

    ``now`` returns the Unix time, and ``state`` is the clock state of adjtimex(2), None if unknown.
    """
    if now() < _CLOCK_FROM:
        return Check(
            "FAIL", "clock", "the system clock shows "
                f"{time.strftime('%d %b %Y', time.gmtime(now()))}",
            "set the clock: servers do not find spans with a wrong year",
        )  # fmt: skip
    if state == _UNSYNCHRONISED and nodes > 1:
        return Check(
            "warn", "clock", f"the clock is not synchronized, but the run uses {nodes} nodes",
            "start chronyd or systemd-timesyncd on each node",
        )  # fmt: skip
    if state == _UNSYNCHRONISED:
        return Check(
            "ok", "clock", "not synchronized by NTP, which is needed only for runs on several nodes"
        )
    return Check("ok", "clock", "set" if state is None else "set and synchronized")


def clock_state() -> int | None:
    """Return the clock state of adjtimex(2); None if the system has no such call."""
    try:
        return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)))
    except (OSError, AttributeError, TypeError):  # only Linux has adjtimex; Windows has no libc
        return None


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
