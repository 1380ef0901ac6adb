"""The agent's folder in a run folder, and the lock of the agent that uses the folder.

The folder is ``agent/<host>``, or ``agent/<host>-2`` and so on if agents of other machines or
containers with the same host name use the first folders. The lock of a killed agent is released.
The next agent acquires the lock and continues from the state and log in the folder.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Final

from otel_mlperf.ids import safe_name
from otel_mlperf.whole_file import make_folder, open_private, open_without_links

with suppress(ImportError):  # Windows, where nothing is recorded
    import fcntl
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOCK: Final = "owner.lock"
_IDENTITY_BYTES: Final = 256
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def node_folder(run_folder: Path, host: str, number: int = 1) -> Path:
    """Return the path of an agent's folder.

    ``number`` distinguishes agents with equal host names, and is appended unless 1.
    """
    name = safe_name(host)
    return run_folder / "agent" / (name if number == 1 else f"{name}-{number}")


@contextmanager
def claim_folder(run_folder: Path, host: str, journals: Path) -> Iterator[Path]:
    """Create, lock and yield the folder of the agent that serves the journals in ``journals``.

    If a previous agent of the same journals is still ending and has the lock, the folder is used
    without the lock, because the new agent needs the folder's state and log.

    Raises:
        OSError: the run folder cannot be written.
    """
    identity = _identify(journals)
    for number in count(1):
        folder = node_folder(run_folder, host, number)
        make_folder(folder)
        lock = _open(folder)
        try:
            if _acquire(lock):
                os.ftruncate(lock, 0)
                os.pwrite(lock, identity, 0)
            elif os.pread(lock, _IDENTITY_BYTES, 0) != identity:
                continue
            yield folder
            return
        finally:
            os.close(lock)


@contextmanager
def claim_ended_folder(folder: Path) -> Iterator[bool]:
    """Lock an agent's folder and yield True; yield False if that agent still uses the folder."""
    lock = _open(folder)
    try:
        yield _acquire(lock)
    finally:
        os.close(lock)


def _open(folder: Path) -> int:
    path = str(folder / _LOCK)
    with suppress(FileNotFoundError):
        lock = open_without_links(path, os.O_RDONLY)
        # A lock file with further hard links (from a backup) is replaced, unless an agent has
        # locked the file.
        if os.fstat(lock).st_nlink > 1 and not _acquire(lock):
            return lock
        try:
            return open_private(path, os.O_RDWR | os.O_CREAT)
        finally:
            os.close(lock)
    return open_private(path, os.O_RDWR | os.O_CREAT)


def _acquire(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system does not support locks, so no agent has one
        return True
    return True


def _identify(journals: Path) -> bytes:
    """Return text that identifies a folder of journals: kernel boot, file system, folder name."""
    boot_id = ""
    with suppress(OSError), open(_BOOT_ID, encoding="ascii") as file:
        boot_id = file.read().strip()
    return f"{boot_id} {os.stat(journals).st_dev} {journals.name}".encode()
