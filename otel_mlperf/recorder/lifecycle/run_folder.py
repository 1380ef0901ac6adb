"""Creation of the run folder, its ``run.json``, and the restart count of a rank."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import sys
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from otel_mlperf.errors import ConfigError, JournalError
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.ids import hashed_name, safe_name
from otel_mlperf.journal.journal_folder import folders_of_run, make_private
from otel_mlperf.portability import host_name
from otel_mlperf.recorder.core.attribute_values import safe_value
from otel_mlperf.recorder.core.faults import warn_once
from otel_mlperf.recorder.core.scrub import clean
from otel_mlperf.recorder.lifecycle.clocks import start_time_ns
from otel_mlperf.redaction import IN_PROCESS
from otel_mlperf.run_files.run_file import (
    RUN_FILE,
    describe_sharing,
    extend_run_file,
    write_run_file,
)
from otel_mlperf.whole_file import make_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_PLACE = (
    errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL,
)  # fmt: skip
"""Error numbers of permanent errors; all other errors might be temporary."""
_DEPTH = 32
_TEXT_BYTES = 1 << 16
_LOWEST, _HIGHEST = -(1 << 63), 1 << 64
_RANDOM_ID = re.compile(r"([0-9a-f]{32})(\.\d+)?")


def prepare_folder(parent: str, run_id: str, name: str, facts: Mapping[str, Any]) -> str:
    """Create the run folder with its ``run.json``, unless another rank has created it.

    After a temporary disk error, a warning is logged and the path is returned nevertheless: an
    agent or ``doctor --recover`` may create the folder later. Until then, recorded data stays in
    shared memory.

    Args:
        parent: folder of all run folders.
        run_id: id of the run.
        name: name of the run.
        facts: parameters, tags and other content of ``run.json``.

    Returns:
        The absolute path, ``<parent>/<name>-<start of the id>``. If ``parent`` is not UTF-8, a
        link replaces it, because journals, tables and servers accept only text.

    Raises:
        ConfigError: the folder can never be created.
        JournalError: ``parent`` is relative, and the working directory has been removed.
    """
    try:
        parent = os.path.abspath(parent)
    except FileNotFoundError as error:
        raise JournalError(
            f"creating a run folder in {parent}: the working directory is gone; set OTEL_MLPERF_DIR"
        ) from error
    parent = _path_in_utf8(parent)
    own = {"id": run_id, "name": name, "started_ns": start_time_ns(),
           "host": host_name(), "os": sys.platform}  # fmt: skip
    about = plain(own) | IN_PROCESS.values(plain(facts))
    for short in short_ids(run_id):
        folder = os.path.join(parent, f"{safe_name(name)}-{short}")
        try:
            make_folder(folder)
            # False: the folder belongs to a run whose id has the same start. Try a longer name.
            if write_run_file(folder, about):
                return folder
        except OSError as error:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
            if error.errno not in _NO_PLACE:
                _warn_of_disk_error(error)
                return os.path.join(parent, f"{safe_name(name)}-{short_ids(run_id)[-1]}")
            raise ConfigError(
                f"creating the run folder {folder}: {error.strerror}; set OTEL_MLPERF_DIR to a "
                "writable folder"
            ) from error
    raise ConfigError(
        f"creating a run folder in {parent}: all folder names for the run {run_id} exist already"
    )


def _path_in_utf8(folder: str) -> str:
    """Return ``folder`` or, if that is not UTF-8, a new link to it in shared memory."""
    try:
        folder.encode()
    except UnicodeEncodeError:
        links, _ = folders_of_run("paths", folder, user=os.getuid(), key="")
        link = os.path.join(links, blake2b(os.fsencode(folder), digest_size=8).hexdigest())
        with contextlib.suppress(OSError, JournalError):
            make_folder(folder)
            make_private(links)
            with contextlib.suppress(FileExistsError):
                os.symlink(folder, link)
            return link
    return folder


def warn_of_others(folder: str) -> None:
    """Warn once if other users could replace the run folder or its content."""
    if sentence := describe_sharing(folder):
        warn_once("%s", sentence)


def short_ids(run_id: str) -> list[str]:
    """Return abbreviations of a run id for its path, to try in order, the shortest first."""
    match = _RANDOM_ID.fullmatch(run_id)
    if match is None:
        return [safe_name(run_id), hashed_name(run_id)]
    text, suffix = match[1], match[2] or ""
    return [text[:length] + suffix for length in (4, 8, 16, 32)]


def add_facts(folder: str, params: Mapping[str, Any], tags: Sequence[str]) -> None:
    """Add parameters and tags to ``run.json`` after the start of the run."""
    known = IN_PROCESS.values(plain({"params": params, "tags": [*map(str, tags)]}))
    extend_run_file(folder, known["params"], known["tags"])


def count_restart(folder: str, rank: int | str, known: int | None) -> int:
    """Register a start of a rank, and return its restart count, from 0 upward.

    Args:
        folder: the run folder.
        rank: the rank, or another text that identifies the process.
        known: the launcher's count; if it is None, the starts in the run folder are counted.
    """
    starts = os.path.join(folder, "starts")
    restart = known or 0
    try:
        make_folder(starts)
        return _draw_restart(starts, rank, restart, known)
    except OSError as error:
        discard_start(folder)
        _warn_of_disk_error(error)
        return restart


def _warn_of_disk_error(error: OSError) -> None:
    warn_once("writing the run folder: %s; recorded data stays in shared memory until an agent, "
              "or 'otel-mlperf doctor --recover', can write the folder; set OTEL_MLPERF_DIR to a "
              "writable folder", error)  # fmt: skip


def discard_start(folder: str, start: str = "") -> None:
    """Remove the file ``start`` of a failed start, and the run folder if no other start exists."""
    starts = os.path.join(folder, "starts")
    if start:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(starts, start))
    with contextlib.suppress(OSError):
        # Fails if another rank has registered its start: the run folder is then in use and stays.
        if os.path.isdir(starts):
            os.rmdir(starts)
        if os.listdir(folder) == [RUN_FILE]:
            os.unlink(os.path.join(folder, RUN_FILE))
        os.rmdir(folder)


def _draw_restart(starts: str, rank: int | str, restart: int, known: int | None) -> int:
    while True:
        try:
            # O_EXCL: of two concurrent starts of a rank, also on nodes that share a disk, only one
            # creates the file; the other one gets the next number.
            path = os.path.join(starts, f"{rank}-{restart}")
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            if known is not None:
                return known
            restart += 1
        else:
            return restart


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """Convert a value to JSON types, at most ``depth`` levels deep; inf and nan become text."""
    if isinstance(value, Mapping | list | tuple):
        if not depth:
            return f"<{type(value).__qualname__}>"
        if isinstance(value, Mapping):
            return {_plain_key(key): plain(item, depth - 1) for key, item in value.items()}
        return [plain(item, depth - 1) for item in value]
    if value is None or isinstance(value, bool):
        return value
    return _number_or_text(value)


def _plain_key(key: Any) -> str:
    return clean(str(key), _TEXT_BYTES)


def _number_or_text(value: Any) -> Any:
    if isinstance(value, str):
        return clean(str.__str__(value), _TEXT_BYTES)
    if isinstance(value, int):
        return int(value) if _LOWEST <= value < _HIGHEST else safe_value(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    return _as_text(value)


def _as_text(value: Any) -> Any:
    """Return type and shape of an array, which might be on a GPU; ``repr`` of unknown types."""
    safe = safe_value(value)
    if isinstance(safe, float) and not math.isfinite(safe):
        return str(safe)
    if isinstance(value, set | frozenset) or (isinstance(safe, str) and safe.startswith("<")):
        try:
            return clean(repr(value), _TEXT_BYTES)
        except Exception as error:  # noqa: BLE001 - __repr__ is the program's code
            raise_foreign(error)
            return str(safe)
    return safe if isinstance(safe, bool | int | float) else str(safe)
