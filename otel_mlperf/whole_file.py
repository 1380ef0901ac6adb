"""Atomic file writes, private files, and access to run folders that follows no symbolic links.

**Atomic writes.** A file is written under a temporary name in the same folder, and then renamed.
This suffices if the *process* dies, because the kernel preserves written data. If the *machine*
crashes, the new name might exist without its content. Therefore a file that is the only copy of
recorded data (state, requests, parts, converted windows) is synced before it is renamed, which
costs milliseconds on a disk. Files in shared memory, files that are rewritten within seconds, and
files of the training process, which must not wait for a disk, are not synced. The rename itself is
never synced, because both the old and the new file are complete.

**Private files.** Files of a run are private to their owner, regardless of the umask. Files that a
user requests by a command follow the umask.

**Links.** Other users might be able to change a run folder, or might have created it. Starting at
the folder with ``run.json``, folders are opened one after the other by descriptor, and a symbolic
link is an error. No access therefore leaves the run folder, even if a folder is replaced by a link
at the same time. Without ``/proc``, libraries that open a file by name receive its path instead. On
Windows, which has no such descriptors, all code uses paths: other users must not have write access
to a run folder there.
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
"""Name of the file that identifies a run folder.

It equals ``RUN_FILE`` in ``otel_mlperf.run_files.run_file``, which this lower module cannot
import."""
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
    """Yield a temporary file name; at the end of the block that file replaces ``path``.

    If the block raises an error, the temporary file is removed, and ``path`` is unchanged.

    Args:
        path: Path of the finished file; its folder must exist.
        is_durable: Whether the file must survive a crash of the machine.
        temporary: Temporary name, required if several processes may write ``path`` (default:
            ``path`` with a suffix, which overwrites the file of a killed writer).
        is_private: Whether other users must not be able to read the file. The temporary file then
            already exists and is empty when the block starts.

    Raises:
        OSError: the file cannot be written or renamed.
    """
    temporary_path = str(temporary or f"{path}.new")
    if is_private:
        with _replacing_private(str(path), temporary_path, is_durable=is_durable) as name:
            yield name
        return
    try:
        yield temporary_path
        if is_durable:
            _sync(temporary_path)
        os.replace(temporary_path, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary_path)
        raise


@contextmanager
def _replacing_private(path: str, temporary_path: str, *, is_durable: bool) -> Iterator[str]:
    with _folder_of(path) as folder:
        name, new = _name_in(folder, path), _name_in(folder, temporary_path)
        written = _by_descriptor(folder, temporary_path)
        try:
            # Remove any existing file: another user may have created a link or a pipe there.
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
    """Do the same as ``replacing`` for libraries that open one or more files by name.

    The files are written in a new private folder, so that no other user can create a link there.
    Only the file with the yielded name replaces ``path``.

    Raises:
        OSError: the file cannot be written, or the library has not written a regular file.
    """
    around = os.path.dirname(os.path.abspath(path))
    with _folder_of(str(path)) as folder, _private_folder(folder, around) as private:
        name = f"{private}/{os.path.basename(path)}"
        yield name
        os.close(open_private(name, os.O_RDONLY))
        os.replace(name, _name_in(folder, str(path)), dst_dir_fd=folder)


@contextmanager
def _private_folder(around: int | None, path: str) -> Iterator[str]:
    """Yield a path of a new private folder; at the end remove the folder with its files.

    The new folder is in the folder ``path``, whose descriptor is ``around`` (None on Windows). The
    yielded path is ``/proc/self/fd/N``, which stays valid if a folder is renamed, or a plain path
    in portable mode.
    """
    name = f".{os.getpid()}-{os.urandom(8).hex()}"
    os.mkdir(name, 0o700, dir_fd=around)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | NOFOLLOW | CLOEXEC, dir_fd=around)
    try:
        about = os.fstat(fd)  # another user may have replaced the folder
        if about.st_uid != os.geteuid() or about.st_mode & 0o022:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        yield f"{path}/{name}" if IS_PORTABLE else f"/proc/self/fd/{fd}"
    finally:
        with suppress(OSError):
            for leftover in os.listdir(fd):
                os.unlink(leftover, dir_fd=fd)
            os.rmdir(name, dir_fd=around)
        os.close(fd)


def write_whole(
    path: str | Path, content: bytes, *, is_durable: bool = False, temporary: str | Path = ""
) -> None:
    """Replace ``path`` atomically with a private file that has ``content``.

    The other arguments are those of ``replacing``.

    Raises:
        OSError: the file cannot be written.
    """
    with (
        replacing(path, is_durable=is_durable, temporary=temporary) as name,
        open(name, "wb", opener=open_private) as file,
    ):
        file.write(content)


@contextmanager
def new_file(path: Path, *, is_replaced: bool = False) -> Iterator[BinaryIO]:
    """Yield an output file for a command, which is renamed to ``path`` at the end of the block.

    If ``is_replaced`` is set, an existing file is replaced.

    Raises:
        OutputError: ``path`` exists and must not be replaced, or the file cannot be written.
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
    """Open a file that is private to this user, as an ``opener`` of ``open()``.

    A run folder can contain files of other users. Therefore links are not followed, and only
    regular files are opened. A file with several hard links is replaced with a copy before it is
    written to, so that backups and files elsewhere do not change.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    fd = open_without_links(path, flags, 0o600)
    try:
        _check_regular(fd, path)
        if flags & os.O_ACCMODE and os.fstat(fd).st_nlink > 1:
            _copy_linked(path, fd)
            os.close(fd)
            fd = open_without_links(path, flags, 0o600)
        _make_private(fd)  # an existing file may have other permissions
    except OSError:
        os.close(fd)
        raise
    return fd


def _copy_linked(path: str, fd: int) -> None:
    linked = open_without_links(path, os.O_RDONLY)
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
    """Read a regular file in a run folder, which may belong to another user.

    Other kinds of files are refused: a pipe would block, a device would be read endlessly, and a
    link may refer to any file.

    Raises:
        OSError: the file cannot be read, is not regular, or is larger than ``at_most_bytes``.
    """
    with open(path, "rb", opener=open_without_links) as file:
        size = _check_regular(file.fileno(), path)
        if size > at_most_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(size)


def _check_regular(fd: int, path: str | Path) -> int:
    """Return the size of an open file in bytes.

    Raises:
        OSError: the file is not a regular file.
    """
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return about.st_size


def open_without_links(path: str, flags: int, mode: int = 0o777) -> int:
    """Open a file without following links or blocking on a pipe, as an ``opener`` of ``open()``."""
    # O_NONBLOCK is required: otherwise opening a pipe would wait for its other end.
    safely = NONBLOCK | NOFOLLOW | CLOEXEC
    with _folder_of(path) as folder:
        return os.open(_name_in(folder, path), flags | safely, mode, dir_fd=folder)


def open_to_read(path: str | Path) -> int:
    """Open a file that a user specified; links are followed, except those in a run folder.

    Raises:
        OSError: the file cannot be opened.
    """
    # O_NONBLOCK is required: otherwise opening a pipe would wait for its other end.
    flags = os.O_RDONLY | NONBLOCK | CLOEXEC
    if _run_around(os.path.dirname(os.path.abspath(path))) is None:
        return os.open(path, flags)
    return open_without_links(str(path), flags)


def regular_files(folder: str | Path) -> list[str]:
    """Return the names of the regular files in a folder.

    Raises:
        OSError: the folder cannot be listed, or its path within a run folder contains a link.
    """
    file = os.path.join(folder, _MARK)
    with _folder_of(file) as fd, os.scandir(os.path.dirname(_by_descriptor(fd, file))) as files:
        return [file.name for file in files if file.is_file(follow_symlinks=False)]


def make_folder(path: str | Path) -> None:
    """Create a folder and its missing parents, private to their owner; the folder may exist.

    Raises:
        OSError: the folder cannot be created, or ``path`` exists and is not a folder.
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
    """Return the run folder that is or contains ``folder``; None if there is none."""
    for _ in range(_DEPTH):
        if os.path.lexists(os.path.join(folder, _MARK)):
            return folder
        folder = os.path.dirname(folder)
    return None


@contextmanager
def _folder_of(path: str) -> Iterator[int | None]:
    """Yield a descriptor of a path's folder, opened without following links in a run folder.

    The descriptor is None on Windows, which cannot open folders.

    Raises:
        OSError: the folder cannot be opened, or its path within a run folder contains a link.
    """
    if IS_WINDOWS:
        yield None
        return
    folder = os.path.dirname(os.path.abspath(path))
    top = _run_around(folder) or folder
    fd = os.open(top, _FOLDER)
    try:
        if top != folder:
            os.stat(_MARK, dir_fd=fd, follow_symlinks=False)  # fails if the folder was replaced
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
    """Return a file's name for calls with ``dir_fd=folder``; ``path`` if ``folder`` is None."""
    return path if folder is None else os.path.basename(path)


def _by_descriptor(folder: int | None, path: str) -> str:
    """Return a path to a file by the folder's descriptor, valid even if the folder is renamed."""
    return path if IS_PORTABLE else f"/proc/self/fd/{folder}/{os.path.basename(path)}"


def _make_private(fd: int) -> None:
    if hasattr(os, "fchmod"):  # not on Windows, where the permissions of the folder apply
        os.fchmod(fd, 0o600)


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
