"""Atomic file writes, private files and link-safe access in run folders.

A file is written under another name next to its place, and then renamed. That is enough against the
end of a *process*: the kernel keeps what was written. A *machine* that stops may have kept the new
name without the content. The only copy of something that is recorded (state, requests, parts,
results of conversions) is therefore synced first, which costs milliseconds on a disk. Files in
shared memory, files that are made anew within seconds, and files that the training process writes,
which must not wait for a disk, are not synced. The rename itself is never synced: the old file and
the new one are both whole.

Files of a run are private to their owner, whatever the umask. Files that a user has asked for
follow the umask.

Other users may change a run folder, or have made it. From the folder with ``run.json`` down,
folders are opened one after the other by their descriptors, and a link stops that. Nothing leads
out of the folder, also where a folder becomes a link meanwhile. Where there is no ``/proc``, a
library gets a file's name instead; on Windows all code does. There other users must not be able to
change a run folder.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from otel_mlperf.errors import OutputError
from otel_mlperf.portability import CLOEXEC, IS_PORTABLE, IS_WINDOWS, NOFOLLOW, NONBLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

_MARK: Final = "run.json"
"""File of a run folder (``otel_mlperf.run_files.run_file``, which is above this module)."""
_DEPTH: Final = 6
"""Maximum number of folders between a file and its run folder."""
_NO_FOLDER: Final = "a link, or not a folder; links in a run folder are not followed"
_FOLDER: Final = (0 if IS_PORTABLE else os.O_PATH) | getattr(os, "O_DIRECTORY", 0) | CLOEXEC


@contextmanager
def replacing(
    path: str | Path,
    *,
    is_durable: bool = False,
    temporary: str | Path = "",
    is_private: bool = True,
) -> Iterator[str]:
    """Yield the name under which to write a file that replaces ``path`` at the end.

    After an error nothing is left of it, and ``path`` is unchanged.

    Args:
        path: of the finished file; its folder exists.
        is_durable: whether it must survive that the machine stops.
        temporary: the other name, if several processes may write ``path``; a single writer
            overwrites what it left when it was killed.
        is_private: whether no other user may read it: then an empty file exists to write to.

    Raises:
        OSError: the place refuses.
    """
    beside = str(temporary or f"{path}.new")
    if is_private:
        with _replacing_private(str(path), beside, is_durable=is_durable) as name:
            yield name
        return
    try:
        yield beside
        if is_durable:
            _sync(beside)
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


@contextmanager
def _replacing_private(path: str, beside: str, *, is_durable: bool) -> Iterator[str]:
    with _folder_of(path) as folder:
        name, new = _name_in(folder, path), _name_in(folder, beside)
        written = _by_descriptor(folder, beside)
        try:
            # Another user may have put a link or a pipe there.
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | CLOEXEC
            fd = os.open(new, flags, 0o600, dir_fd=folder)
            try:
                _make_private(fd)
                yield written
                if is_durable:
                    _sync(written)
            finally:
                os.close(fd)
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(new, dir_fd=folder)
            raise


@contextmanager
def replacing_by_name(path: str | Path) -> Iterator[str]:
    """Yield as ``replacing``, for a library that opens the file, and more files, by name.

    The files are in a new folder that no other user may write to, so that no one can put a link
    there.

    Raises:
        OSError: the place refuses, or the library has written no regular file.
    """
    around = os.path.dirname(os.path.abspath(path))
    with _folder_of(str(path)) as folder, _private_folder(folder, around) as private:
        name = f"{private}/{os.path.basename(path)}"
        yield name
        os.close(open_private(name, os.O_RDONLY))
        os.replace(name, _name_in(folder, str(path)), dst_dir_fd=folder)


@contextmanager
def _private_folder(around: int | None, path: str) -> Iterator[str]:
    """Yield the path, by its descriptor, of a new folder; remove it at the end with its files.

    It is in the folder ``path``, whose descriptor is ``around``.
    """
    name = f".{os.getpid()}-{os.urandom(8).hex()}"
    os.mkdir(name, 0o700, dir_fd=around)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | NOFOLLOW | CLOEXEC, dir_fd=around)
    try:
        about = os.fstat(fd)  # another user may have replaced it
        if about.st_uid != os.geteuid() or about.st_mode & 0o022:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        yield f"{path}/{name}" if IS_PORTABLE else f"/proc/self/fd/{fd}"
    finally:
        with suppress(OSError):
            for left in os.listdir(fd):
                os.unlink(left, dir_fd=fd)
            os.rmdir(name, dir_fd=around)
        os.close(fd)


def write_whole(
    path: str | Path, content: bytes, *, is_durable: bool = False, temporary: str | Path = ""
) -> None:
    """Replace ``path`` by a file of that content (see ``replacing``).

    Raises:
        OSError: the place refuses.
    """
    with (
        replacing(path, is_durable=is_durable, temporary=temporary) as name,
        open(name, "wb", opener=open_private) as file,
    ):
        file.write(content)


@contextmanager
def new_file(path: Path, *, is_replaced: bool = False) -> Iterator[BinaryIO]:
    """Yield a file for the user of a command, which gets its name when all is written.

    Raises:
        OutputError: a file exists that must not be replaced, or the place refuses.
    """
    if path.exists() and not (is_replaced and path.is_file()):
        raise OutputError(
            f"writing {path}: the file already exists; replace it with --force, or choose another "
            "with --out"
            if path.is_file()
            else f"writing {path}: this is not a file; choose a file with --out"
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with (
            replacing(path, temporary=temporary, is_private=False) as name,
            open(name, "xb") as file,
        ):
            yield file
    except OSError as error:
        why = error.strerror or error
        raise OutputError(f"writing {path}: {why}; choose another place with --out") from error


def open_private(path: str, flags: int) -> int:
    """Open a file as ``opener`` of ``open()``, private to this user whatever the umask.

    A run folder may contain files of another user. No link is followed, and only regular files are
    opened. A file with other names (hard links) is replaced by a copy before it is written to:
    backups and files elsewhere stay unchanged.

    Raises:
        OSError: the place refuses.
    """
    fd = open_at_once(path, flags, 0o600)
    try:
        _check_regular(fd, path)
        if flags & os.O_ACCMODE and os.fstat(fd).st_nlink > 1:
            _copy_linked(path, fd)
            os.close(fd)
            fd = open_at_once(path, flags, 0o600)
        _make_private(fd)  # it may have existed
    except OSError:
        os.close(fd)
        raise
    return fd


def _copy_linked(path: str, fd: int) -> None:
    linked = open_at_once(path, os.O_RDONLY)
    try:
        if not os.path.samestat(os.fstat(linked), os.fstat(fd)):
            raise OSError(errno.EAGAIN, "the file was replaced while it was opened", path)
        with (
            replacing(path, temporary=f"{path}.{os.getpid()}.new") as name,
            open(name, "wb", opener=open_private) as own,
        ):
            while block := os.read(linked, 1 << 20):
                own.write(block)
    finally:
        os.close(linked)


def read_regular(path: str | Path, at_most_bytes: int = 1 << 30) -> bytes:
    """Read a regular file in a run folder, which may be another user's.

    A pipe would block, a device would be read for ever, and a link may lead anywhere.

    Raises:
        OSError: the file cannot be read, is not a regular one, or is larger than ``at_most_bytes``.
    """
    with open(path, "rb", opener=open_at_once) as file:
        size = _check_regular(file.fileno(), path)
        if size > at_most_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(size)


def _check_regular(fd: int, path: str | Path) -> int:
    """Return the size of an open file in bytes.

    Raises:
        OSError: it is not a regular file.
    """
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return about.st_size


def open_at_once(path: str, flags: int, mode: int = 0o777) -> int:
    """Open a file as an opener that follows no link, and does not block on a pipe."""
    # O_NONBLOCK: otherwise opening a pipe would wait for its other end.
    safely = NONBLOCK | NOFOLLOW | CLOEXEC
    with _folder_of(path) as folder:
        return os.open(_name_in(folder, path), flags | safely, mode, dir_fd=folder)


def open_to_read(path: str | Path) -> int:
    """Open a file that a user names; links are followed, except those in a run folder.

    Raises:
        OSError: it cannot be opened.
    """
    # O_NONBLOCK: otherwise opening a pipe would wait for its other end.
    flags = os.O_RDONLY | NONBLOCK | CLOEXEC
    if _run_around(os.path.dirname(os.path.abspath(path))) is None:
        return os.open(path, flags)
    return open_at_once(str(path), flags)


def regular_files(folder: str | Path) -> list[str]:
    """Return names of the regular files in a folder; in a run folder no link has led there.

    Raises:
        OSError: it cannot be listed, or a link has led there.
    """
    file = os.path.join(folder, _MARK)
    with _folder_of(file) as fd, os.scandir(os.path.dirname(_by_descriptor(fd, file))) as files:
        return [file.name for file in files if file.is_file(follow_symlinks=False)]


def make_folder(path: str | Path) -> None:
    """Create a folder, and missing parents, each private to its owner.

    Raises:
        OSError: the place refuses, or what is there is no folder.
    """
    path = os.path.abspath(path)
    if not os.path.lexists(os.path.dirname(path)):
        make_folder(os.path.dirname(path))
    with _folder_of(path) as folder:
        try:
            os.mkdir(_name_in(folder, path), 0o700, dir_fd=folder)
        except FileExistsError:
            is_in_run = _run_around(os.path.dirname(path)) is not None
            about = os.stat(_name_in(folder, path), dir_fd=folder, follow_symlinks=not is_in_run)
            if not stat.S_ISDIR(about.st_mode):
                why = _NO_FOLDER if is_in_run else os.strerror(errno.EEXIST)
                raise FileExistsError(errno.EEXIST, why, path) from None


def _run_around(folder: str) -> str | None:
    """Return the run folder that a folder is, or is in."""
    for _ in range(_DEPTH):
        if os.path.lexists(os.path.join(folder, _MARK)):
            return folder
        folder = os.path.dirname(folder)
    return None


@contextmanager
def _folder_of(path: str) -> Iterator[int | None]:
    """Yield a descriptor of the folder of a path; in a run folder no link has led there.

    It is None on Windows, which opens no folder.

    Raises:
        OSError: it cannot be reached.
    """
    if IS_WINDOWS:
        yield None
        return
    folder = os.path.dirname(os.path.abspath(path))
    top = _run_around(folder) or folder
    fd = os.open(top, _FOLDER)
    try:
        if top != folder:
            os.stat(_MARK, dir_fd=fd, follow_symlinks=False)  # it may have been replaced
            for name in os.path.relpath(folder, top).split(os.sep):
                try:
                    below = os.open(name, _FOLDER | NOFOLLOW, dir_fd=fd)
                except NotADirectoryError:
                    raise NotADirectoryError(errno.ENOTDIR, _NO_FOLDER, folder) from None
                os.close(fd)
                fd = below
        yield fd
    finally:
        os.close(fd)


def _name_in(folder: int | None, path: str) -> str:
    """Return a file's name for calls with its folder's descriptor; without one its path."""
    return path if folder is None else os.path.basename(path)


def _by_descriptor(folder: int | None, path: str) -> str:
    """Return a path by its folder's descriptor, independent of that folder's current name."""
    return path if IS_PORTABLE else f"/proc/self/fd/{folder}/{os.path.basename(path)}"


def _make_private(fd: int) -> None:
    if hasattr(os, "fchmod"):  # not on Windows, where files are the user's by their folder
        os.fchmod(fd, 0o600)


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
