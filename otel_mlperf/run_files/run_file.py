"""The file ``run.json``, which makes a folder a run, and the agreement of all ranks on one.

The recorder writes the file before anything else is in the folder, and every reader starts with it.
This module is therefore below both, and loads nothing that training does not have.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import zlib
from typing import TYPE_CHECKING, Any, Final

# Not the standard library's: a ``json.py`` next to the program would be imported in its place.
import msgspec

from otel_mlperf.errors import StoreError
from otel_mlperf.portability import IS_WINDOWS
from otel_mlperf.whole_file import read_regular, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

RUN_FILE: Final = "run.json"
FORMAT: Final = 1
"""Version of the run folder, in ``run.json``; a reader refuses a higher one."""
_MOST_BYTES: Final = 64 << 20
_KEY: Final = re.compile("[0-9a-f]{8}")


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``run.json``: the facts of the run at its start."""

    id: str
    name: str
    started_ns: int
    params: dict[str, Any] = {}
    tags: list[str] = []
    host: str = ""
    os: str = "linux"
    """As OpenTelemetry's ``os.type`` names it."""
    world_size: int = 1
    integrations: list[str] = []
    """Integrations that detect the program's steps from outside, by name: it need not report them
    itself."""
    is_wrapper: bool = False
    """Whether its program only started the program that was recorded in its place."""
    format: int = FORMAT


def read_run_file(folder: Path) -> RunFile:
    """Read the facts of the run in ``folder``.

    Raises:
        StoreError: its ``run.json`` is not readable, or from a newer version.
    """
    file = folder / RUN_FILE
    try:
        facts = msgspec.json.decode(read_regular(file, _MOST_BYTES), type=RunFile)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise StoreError(f"reading {file}: {error}; a run folder requires this file") from error
    if facts.format > FORMAT:
        raise StoreError(
            f"reading {file}: the file has format {facts.format}, this version of otel-mlperf "
            f"supports {FORMAT}; upgrade otel-mlperf"
        )
    return facts


def describe_sharing(folder: str | Path) -> str:
    """Return a sentence if other users can change what a run folder contains, else an empty one."""
    path = os.path.abspath(folder)
    if IS_WINDOWS:  # where a mode does not tell who may write
        return ""
    for place in (os.path.dirname(path), path):
        with contextlib.suppress(OSError):
            about = os.stat(place)
            is_shared = about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX
            if is_shared or about.st_uid not in (0, os.geteuid()):
                return (
                    f"other users can change the run folder {folder}: {place} belongs to user "
                    f"{about.st_uid} and has mode {stat.S_IMODE(about.st_mode):03o}; use a folder "
                    "of your own with mode 700 to prevent this"
                )
    return ""


def write_run_file(folder: str, facts: Mapping[str, Any]) -> bool:
    """Write the first facts of the run ``facts["id"]``, unless another rank has.

    Returns:
        Whether the folder is that run's, now or already; False if ``run.json`` is another run's or
        cannot be read, and is left unchanged.

    Raises:
        OSError: the place refuses.
    """
    path = os.path.join(folder, RUN_FILE)
    if not os.path.exists(path):
        _write_first(path, {"format": FORMAT, "key": os.urandom(4).hex(), **facts})
    try:
        # The file decides which writer won: two runs may have chosen the same folder.
        return bool(_read(path).get("id") == facts["id"])
    except (msgspec.MsgspecError, ValueError, AttributeError):
        return False


def read_key(folder: str | Path) -> str:
    """Return the part of a journal folder's name that identifies the run folder.

    Two run folders may have runs of the same id. The key is random and stored in ``run.json``: one
    folder has different paths in containers. It is empty for a run of an earlier version, and is
    derived from the path as long as there is no such file.
    """
    try:
        key = _read(os.path.join(folder, RUN_FILE)).get("key", "")
    except (OSError, ValueError, msgspec.MsgspecError, AttributeError):
        return _key_of_path(folder)
    # The folder may be another user's, and the key becomes a part of a path.
    return key if isinstance(key, str) and _KEY.fullmatch(key) else ""


def _key_of_path(folder: str | Path) -> str:
    return f"{zlib.crc32(os.fsencode(os.path.abspath(folder))):08x}"


def extend_run_file(folder: str, params: Mapping[str, Any], tags: Sequence[str]) -> None:
    """Add facts that became known after the run's start; fields of newer versions stay.

    Raises:
        OSError: the place refuses.
        MsgspecError: the file is not JSON.
    """
    about = _read(os.path.join(folder, RUN_FILE))
    about["params"] = {**about.get("params", {}), **params}
    about["tags"] = [*about.get("tags", []), *tags]
    _write_again(folder, about)


def write_integrations(folder: str, names: Sequence[str]) -> None:
    """Store the integrations that see the program from now on; fields of newer versions stay.

    Raises:
        OSError: the place refuses.
        MsgspecError: the file is not JSON.
    """
    about = _read(os.path.join(folder, RUN_FILE))
    about["integrations"] = [*names]
    _write_again(folder, about)


def write_wrapper(folder: str, *, is_wrapper: bool) -> None:
    """Store whether the run's program only started another; fields of newer versions stay.

    Raises:
        OSError: the place refuses.
        MsgspecError: the file is not JSON.
    """
    about = _read(os.path.join(folder, RUN_FILE))
    about["is_wrapper"] = is_wrapper
    _write_again(folder, about)


def _write_again(folder: str, about: Mapping[str, Any]) -> None:
    path = os.path.join(folder, RUN_FILE)
    write_whole(path, _text(about), temporary=_beside(path))


def _write_first(path: str, about: Mapping[str, Any]) -> None:
    draft = _beside(path)
    write_whole(draft, _text(about))
    try:
        os.link(draft, path)  # unlike a rename it fails where another rank was first
    except FileExistsError:
        pass
    except OSError:
        # A file system without links: the last rank wins, so that all have to write the same key.
        key = _key_of_path(os.path.dirname(path))
        write_whole(draft, _text({**about, "key": key}))
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)


def _read(path: str) -> Any:
    return msgspec.json.decode(read_regular(path, _MOST_BYTES))


def _beside(path: str) -> str:
    """Return a name of this writer's alone: all ranks of a run may write concurrently."""
    return f"{os.path.dirname(path)}/.run-{os.getpid()}-{os.urandom(4).hex()}"


def _text(about: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(about), indent=1)
