"""Lock on a folder of journals, which only the serving agent has."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_folder import make_private
from otel_mlperf.portability import CLOEXEC, NOFOLLOW
from otel_mlperf.whole_file import open_without_links

with suppress(ImportError):  # Windows, where nothing is recorded
    import fcntl
if TYPE_CHECKING:
    from pathlib import Path

LOCK: Final = "agent.lock"
_LOCK_WAIT_S: Final = 3.0


def is_served(folder: Path) -> bool:
    """Return whether an agent has locked the folder of journals."""
    # Non-blocking open: another user may have created a pipe with that name.
    with suppress(OSError), open(folder / LOCK, "rb", opener=open_without_links) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


class OnlyOne:
    """Exclusive, reentrant lock on a folder.

    Entering the context returns True, or False if another process has the lock.
    """

    def __init__(self, folder: Path, lock: str = LOCK) -> None:
        self._path = folder / lock
        self._fd = -1

    def __enter__(self) -> bool:
        if self._fd >= 0:
            return self.keeps()
        until = time.monotonic() + _LOCK_WAIT_S
        while not self._locks():
            if self._fd < 0 or time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def keeps(self) -> bool:
        """Return whether this process still has the lock. A removed lock file is created again.

        If another process has locked the current file in the meantime, the result is False.
        """
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self._path)):
                return True
        with suppress(JournalError):
            make_private(str(self._path.parent))
        # If the lock file cannot be created, no other process can have locked it either.
        return self._locks() or not self._path.exists()

    def _locks(self) -> bool:
        self.__exit__()
        try:
            flags = os.O_RDWR | os.O_CREAT | CLOEXEC | NOFOLLOW
            self._fd = os.open(self._path, flags, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and flock, the previous owner may have removed the file. The lock would
            # then be on a nameless file, and another process could lock a new file.
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except OSError:
            return False

    def __exit__(self, *error: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
