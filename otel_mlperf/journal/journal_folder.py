"""Folders of a run's journals: paths, size limits, and files of rows moved out of a ring.

Journals are stored in shared memory. In a file on disk, a single store was measured to block for up
to 9 ms while another process wrote to the disk; on tmpfs it stayed below 1 ms.

Rows that were moved out of a ring before an agent could read them are in ``<journal>.moved``, next
to the journal. This file contains all rows of the first slots, in order. The ring contains the
later rows.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from otel_mlperf.errors import JournalError
from otel_mlperf.ids import hashed_name, safe_name
from otel_mlperf.journal.layout import ROW_BYTES, Shape
from otel_mlperf.portability import CLOEXEC, NOFOLLOW, user_id
from otel_mlperf.portability import shared_memory as find_shared_memory

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED_MEMORY = find_shared_memory()
SUFFIX = ".journal"
ROOM = "raise OTEL_MLPERF_JOURNAL_ROWS, or use aggregate=True for short spans"
"""Recommended action if a journal was full."""
SMALLEST_ROWS = 1 << 11
"""Minimum number of rows: a journal of about 256 KiB."""
_SHARE = 64
"""A journal may use at most this fraction (1/64) of free shared memory, which DataLoader workers
need too."""


def journal_folder(
    run_id: str, run_folder: str, shared_memory: str = SHARED_MEMORY, key: str | None = None
) -> str:
    """Return the folder for a run's journals on this node, the same in all processes of the user.

    It is in shared memory or, without a writable tmpfs, inside the run folder. ``key`` identifies
    the run folder (default: the key in ``run.json``).
    """
    shared, on_disk = folders_of_run(run_id, run_folder, shared_memory, user=user_id(), key=key)
    is_fit = os.path.isdir(shared_memory) and os.access(shared_memory, os.W_OK | os.X_OK)
    return shared if is_fit else on_disk


def folders_of_run(
    run_id: str,
    run_folder: str | Path,
    shared_memory: str = SHARED_MEMORY,
    *,
    user: int | None = None,
    key: str | None = None,
) -> tuple[str, str]:
    """Return both possible folders of a run's journals: in shared memory, and in the run folder.

    ``user`` is the owner of the journals (default: the owner of the run folder). ``key`` identifies
    the run folder (default: the key in its ``run.json``).
    """
    # Imported late: it loads msgspec, and the agent's ``FirstLook`` must not wait for that.
    from otel_mlperf.run_files.run_file import read_key

    owner = os.stat(run_folder).st_uid if user is None else user
    name = run_id if safe_name(run_id, 128) == run_id else hashed_name(run_id)
    if key := read_key(run_folder) if key is None else key:
        name = f"{name}-{key}"  # a run in another folder may have the same id
    shared = os.path.join(_folder_of(owner, shared_memory), name)
    return shared, os.path.join(run_folder, "journals")


def folders_with_journals(shared_memory: str = SHARED_MEMORY) -> list[Path]:
    """Return this user's journal folders in shared memory that contain a journal."""
    mine = Path(_folder_of(user_id(), shared_memory))
    return [folder for folder in sorted(mine.glob("*")) if is_own(folder) and journals_in(folder)]


def journals_in(*folders: str | Path) -> list[Path]:
    """Return the paths of journals in the folders, sorted by name within each folder.

    Folders that are missing, unreadable or unsafe are skipped, and so are files that a user other
    than the folder's owner has created, or could have created.
    """
    return [
        Path(folder, name)
        for folder in folders
        if (owner := _owner(folder)) is not None
        for name in sorted(_names_in(folder))
        if name.endswith(SUFFIX) and _is_of(os.path.join(folder, name), owner, stat.S_ISREG)
    ]


def is_own(folder: str | Path) -> bool:
    """Return whether this user owns the folder, and no other user can create files in it."""
    return _owner(folder) == user_id()


def _owner(folder: str | Path) -> int | None:
    """Return the owner of a journal folder; None if the folder is missing or not safe.

    A folder is safe if its parent has the same owner, and no other user may write to either: a user
    who may write to the parent could replace the folder.
    """
    try:
        owner = os.lstat(folder).st_uid
    except OSError:
        return None
    parent = os.path.dirname(os.path.abspath(folder))
    is_whole = _is_of(folder, owner, stat.S_ISDIR) and _is_of(parent, owner, stat.S_ISDIR)
    return owner if is_whole else None


def _is_of(path: str | Path, owner: int, kind: Callable[[int], bool]) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return kind(status.st_mode) and status.st_uid == owner and not status.st_mode & stat.S_IWOTH


def new_journal_name(rank: int, pid: int) -> str:
    """Return a unique file name for a new journal of process ``pid``."""
    return f"{rank}-{pid}-{os.urandom(4).hex()}{SUFFIX}"


def rank_of(journal: str | Path) -> int | None:
    """Return the rank in the file name of a journal; None if the name has another format."""
    rank = os.path.basename(journal).partition("-")[0]
    return int(rank) if rank.isdecimal() else None


def _folder_of(user: int, shared_memory: str) -> str:
    return os.path.join(shared_memory, f"otel_mlperf-{user}")


def _names_in(folder: str | Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def make_private(folder: str) -> None:
    """Create ``folder`` and its parent, accessible only by this user.

    Raises:
        JournalError: the folder or its parent belongs to another user, is a link, or is writable by
            other users, who could then read or replace the content.
    """
    parent = os.path.dirname(folder)
    try:
        for path in (parent, folder):
            if not os.path.isdir(path):
                os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise JournalError(
            f"creating the journal folder {folder}: {error.strerror}; free space, or make {parent} "
            "writable"
        ) from error
    # All users may write to /dev/shm: another user may have created the folder or a link as a trap.
    for path in (parent, folder):
        if not _is_of(path, user_id(), stat.S_ISDIR):
            raise JournalError(
                f"using the journal folder {folder}: {path} belongs to user "
                f"{os.lstat(path).st_uid}, is a link, or is writable for other users; remove {path}"
            )


def fitting_rows(folder: str, wanted: int) -> int:
    """Return how many rows fit into ``folder``: a power of two, at most ``wanted``."""
    room = os.statvfs(folder)
    share = room.f_bavail * room.f_frsize // _SHARE
    rows = 1 << max(wanted, SMALLEST_ROWS).bit_length() - 1
    while rows > SMALLEST_ROWS and Shape.of_rows(rows).size > share:
        rows >>= 1
    return rows


def moved_path(journal: str) -> str:
    """Return the path of the file with the rows that were moved out of a journal's ring."""
    return f"{journal}.moved"


def count_moved(journal: str) -> int:
    """Return the number of rows in the file of moved rows; 0 if there is no file."""
    with suppress(OSError):
        return os.stat(moved_path(journal), follow_symlinks=False).st_size // ROW_BYTES
    return 0


def read_moved(journal: str, first: int, last: int) -> bytes:
    """Return the bytes of the moved rows of slots ``first`` to ``last`` (inclusive).

    Raises:
        OSError: the file was removed.
    """
    fd = os.open(moved_path(journal), os.O_RDONLY | CLOEXEC | NOFOLLOW)
    try:
        return os.pread(fd, (last - first + 1) * ROW_BYTES, (first - 1) * ROW_BYTES)
    finally:
        os.close(fd)


def drop_moved(journal: str) -> None:
    """Remove the file with a journal's moved rows, if it exists."""
    with suppress(OSError):
        os.unlink(moved_path(journal))
