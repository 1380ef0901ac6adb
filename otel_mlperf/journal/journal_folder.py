"""Where do a run's journals lie, what are they called, and how large may one be?

In shared memory: a store into a file on a disk was measured at up to 9 ms while another process
wrote to it, tmpfs stayed below 1 ms.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from otel_mlperf.errors import JournalError
from otel_mlperf.ids import safe_name
from otel_mlperf.journal.layout import Shape

SHARED_MEMORY = "/dev/shm"
SUFFIX = ".journal"
ROOM = "larger OTEL_MLPERF_JOURNAL_ROWS=, or aggregate=True for short spans"
"""What helps a journal that was full."""
SMALLEST_ROWS = 1 << 11
"""2,048 rows: a journal of about 256 KiB."""
_SHARE = 64
"""One journal takes at most this part of what is free: DataLoader workers live there too."""


def journal_folder(run_id: str, run_folder: str, shared_memory: str = SHARED_MEMORY) -> str:
    """The folder for the journals of a run on this node, the same for every process of the user.

    Without a writable tmpfs it is inside the run folder.
    """
    shared, on_disk = folders_of_run(run_id, run_folder, shared_memory, user=os.getuid())
    is_fit = os.path.isdir(shared_memory) and os.access(shared_memory, os.W_OK | os.X_OK)
    return shared if is_fit else on_disk


def folders_of_run(
    run_id: str,
    run_folder: str | Path,
    shared_memory: str = SHARED_MEMORY,
    *,
    user: int | None = None,
) -> tuple[str, str]:
    """Where a run may have journals: in shared memory, or on disk for want of room there.

    They are ``user``'s, which is the owner of the run folder where none is given.
    """
    owner = os.stat(run_folder).st_uid if user is None else user
    shared = os.path.join(_folder_of(owner, shared_memory), safe_name(run_id, 128))
    return shared, os.path.join(run_folder, "journals")


def folders_with_journals(shared_memory: str = SHARED_MEMORY) -> list[Path]:
    """The folders of this user's runs on this node that hold a journal."""
    mine = Path(_folder_of(os.getuid(), shared_memory))
    return [folder for folder in sorted(mine.glob("*")) if journals_in(folder)]


def journals_in(*folders: str | Path) -> list[Path]:
    """The journals that lie in folders, each folder's by name.

    None are in one that is not there, or that only somebody else may look into.
    """
    return [
        Path(folder, name)
        for folder in folders
        for name in sorted(_names_in(folder))
        if name.endswith(SUFFIX)
    ]


def journal_name(rank: int, pid: int, number: int) -> str:
    """The file name of the ``number``-th journal that a process of a rank makes."""
    return f"{rank}-{pid}-{number}{SUFFIX}"


def rank_of(journal: str | Path) -> int | None:
    """The rank in the name, or at the end of the path, of a journal; None: in none of ours."""
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
    """Creates ``folder``, readable by its owner alone.

    Raises:
        JournalError: somebody else owns it, or it is a link: what is written there could be read.
    """
    parent = os.path.dirname(folder)
    try:
        for path in (parent, folder):
            if not os.path.isdir(path):
                os.makedirs(path, mode=0o700, exist_ok=True)
        # Everybody may write to /dev/shm: a folder, or a link to one, may have been put there for
        # us to fall into. lstat() sees the link itself.
        status = os.lstat(folder)
    except OSError as error:
        raise JournalError(
            f"creating the journal folder {folder}: {error.strerror}; make room, or make {parent} "
            "writable"
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise JournalError(
            f"using the journal folder {folder}: it belongs to user {status.st_uid}, or is a link; "
            "remove it"
        )


def fitting_rows(folder: str, wanted: int) -> int:
    """The largest power of two of rows, at most ``wanted``, that leaves room for others."""
    room = os.statvfs(folder)
    share = room.f_bavail * room.f_frsize // _SHARE
    rows = 1 << max(wanted, SMALLEST_ROWS).bit_length() - 1
    while rows > SMALLEST_ROWS and Shape.of_rows(rows).size > share:
        rows >>= 1
    return rows
