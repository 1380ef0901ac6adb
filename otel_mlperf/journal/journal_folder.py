"""Folders of a run's journals: names, size limits, and rows that were moved out of a ring.

Journals are stored in shared memory: a store into a file on a disk was measured at up to 9 ms while
another process wrote to it; tmpfs stayed below 1 ms.

Rows that had to leave a journal's ring before an agent could read them are in ``<journal>.moved``,
next to the journal. The file contains the rows of the first slots, all of them and in order. The
ring continues behind them.
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
"""Remedy for a journal that was full."""
SMALLEST_ROWS = 1 << 11
"""2,048 rows: a journal of about 256 KiB."""
_SHARE = 64
"""Inverse of the maximum share of free memory per journal: DataLoader workers use the memory, too.
"""


def journal_folder(
    run_id: str, run_folder: str, shared_memory: str = SHARED_MEMORY, key: str | None = None
) -> str:
    """Return the folder for a run's journals on this node, the same for all the user's processes.

    Without a writable tmpfs it is inside the run folder. ``key`` is the run folder's (default: that
    in its ``run.json``).
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
    """Return where a run may have journals: in shared memory, or on disk for want of room there.

    They belong to ``user`` (default: the owner of the run folder).
    """
    # Imported here: it loads msgspec, and the agent's first look must not wait for that.
    from otel_mlperf.run_files.run_file import read_key

    owner = os.stat(run_folder).st_uid if user is None else user
    name = run_id if safe_name(run_id, 128) == run_id else hashed_name(run_id)
    if key := read_key(run_folder) if key is None else key:
        name = f"{name}-{key}"  # a run in another folder may have the same id
    shared = os.path.join(_folder_of(owner, shared_memory), name)
    return shared, os.path.join(run_folder, "journals")


def folders_with_journals(shared_memory: str = SHARED_MEMORY) -> list[Path]:
    """Return this user's private run folders on this node that contain a journal."""
    mine = Path(_folder_of(user_id(), shared_memory))
    return [folder for folder in sorted(mine.glob("*")) if is_own(folder) and journals_in(folder)]


def journals_in(*folders: str | Path) -> list[Path]:
    """Return the journals in folders, sorted by name within each folder.

    A missing folder has none, nor has a folder that only another user may read. A file that anybody
    but the folder's owner has created, or could have, is no journal.
    """
    return [
        Path(folder, name)
        for folder in folders
        if (owner := _owner(folder)) is not None
        for name in sorted(_names_in(folder))
        if name.endswith(SUFFIX) and _is_of(os.path.join(folder, name), owner, stat.S_ISREG)
    ]


def is_own(folder: str | Path) -> bool:
    """Return whether a journal folder is this user's, and no other user can create files in it."""
    return _owner(folder) == user_id()


def _owner(folder: str | Path) -> int | None:
    """Return the owner of a journal folder and of its parent, from which it could be moved away.

    None if they have different owners, or others may write.
    """
    try:
        owner = os.lstat(folder).st_uid
    except OSError:
        return None
    around = os.path.dirname(os.path.abspath(folder))
    is_whole = _is_of(folder, owner, stat.S_ISDIR) and _is_of(around, owner, stat.S_ISDIR)
    return owner if is_whole else None


def _is_of(path: str | Path, owner: int, kind: Callable[[int], bool]) -> bool:
    """Return whether a path is of that kind, no link, of ``owner``, and not writable by all."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return kind(status.st_mode) and status.st_uid == owner and not status.st_mode & stat.S_IWOTH


def new_journal_name(rank: int, pid: int) -> str:
    """Return a file name for a new journal of a process; each call returns another one."""
    return f"{rank}-{pid}-{os.urandom(4).hex()}{SUFFIX}"


def rank_of(journal: str | Path) -> int | None:
    """Return the rank in a journal's name or path; None: it is not a name of this package."""
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
    """Create ``folder``, readable by its owner alone.

    Raises:
        JournalError: the folder, or its parent, is another user's or a link, or others may write
            there: the content could be read, or be moved away.
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
    # Everybody may write to /dev/shm: another user may have created the folder, or a link to one,
    # as a trap.
    for path in (parent, folder):
        if not _is_of(path, user_id(), stat.S_ISDIR):
            raise JournalError(
                f"using the journal folder {folder}: {path} belongs to user "
                f"{os.lstat(path).st_uid}, is a link, or is writable for other users; remove {path}"
            )


def fitting_rows(folder: str, wanted: int) -> int:
    """Return the largest power of two of rows, at most ``wanted``, that leaves room for others."""
    room = os.statvfs(folder)
    share = room.f_bavail * room.f_frsize // _SHARE
    rows = 1 << max(wanted, SMALLEST_ROWS).bit_length() - 1
    while rows > SMALLEST_ROWS and Shape.of_rows(rows).size > share:
        rows >>= 1
    return rows


def moved_path(journal: str) -> str:
    """Return the path of the file for the rows of a journal."""
    return f"{journal}.moved"


def count_moved(journal: str) -> int:
    """Return how many rows, slots 1 to that number, are in the file; 0 without a file."""
    with suppress(OSError):
        return os.stat(moved_path(journal), follow_symlinks=False).st_size // ROW_BYTES
    return 0


def read_moved(journal: str, first: int, last: int) -> bytes:
    """Return the rows of the slots ``first`` to ``last``.

    Raises:
        OSError: the file does not exist any more.
    """
    fd = os.open(moved_path(journal), os.O_RDONLY | CLOEXEC | NOFOLLOW)
    try:
        return os.pread(fd, (last - first + 1) * ROW_BYTES, (first - 1) * ROW_BYTES)
    finally:
        os.close(fd)


def drop_moved(journal: str) -> None:
    """Remove the file, if there is one."""
    with suppress(OSError):
        os.unlink(moved_path(journal))
