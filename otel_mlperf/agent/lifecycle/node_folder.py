"""The folder of a node's agent in a run folder, and the lock of the agent that works in it.

The folder is ``agent/<host>``. It is ``agent/<host>-2`` and so on where an agent of another machine
or container with the same host name works in the first ones. An agent that was killed leaves its
lock to the next one, which continues with what it finds.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Final

from otel_mlperf.ids import safe_name
from otel_mlperf.whole_file import make_folder, open_at_once, open_private

with suppress(ImportError):  # Windows, where nothing is recorded
    import fcntl
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOCK: Final = "owner.lock"
_IDENTITY_BYTES: Final = 256
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def node_folder(run_folder: Path, host: str, number: int = 1) -> Path:
    """Return the ``number``-th folder for agents of a host name; it may not exist."""
    name = safe_name(host)
    return run_folder / "agent" / (name if number == 1 else f"{name}-{number}")


@contextmanager
def claim_folder(run_folder: Path, host: str, journals: Path) -> Iterator[Path]:
    """Create and lock the folder of the agent that reads the journals in ``journals``.

    An agent that no longer serves these journals, but still runs, keeps the lock. Its successor
    works in the same folder, since it needs the state and the log that are there.

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
def claim_left_folder(folder: Path) -> Iterator[bool]:
    """Lock a folder that an agent may have left; yield False while an agent works in it."""
    lock = _open(folder)
    try:
        yield _acquire(lock)
    finally:
        os.close(lock)


def _open(folder: Path) -> int:
    path = str(folder / _LOCK)
    with suppress(FileNotFoundError):
        lock = open_at_once(path, os.O_RDONLY)
        # The lock file may also be in a backup by hard links. It is replaced, unless an agent holds
        # it.
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
    except OSError:  # the file system has no locks, so none is held
        return True
    return True


def _identify(journals: Path) -> bytes:
    """Return what the agents of these journals share: kernel, shared memory and folder."""
    boot_id = ""
    with suppress(OSError), open(_BOOT_ID, encoding="ascii") as file:
        boot_id = file.read().strip()
    return f"{boot_id} {os.stat(journals).st_dev} {journals.name}".encode()
