"""The file ``run.json``, which identifies a folder as a run folder, and its creation by all ranks.

The recorder writes ``run.json`` before any other file in the folder, and every reader reads it
first. This module is therefore used by recorder and readers, and imports only modules that training
needs.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import zlib
from typing import TYPE_CHECKING, Any, Final

# Used instead of ``json``: a ``json.py`` next to the program would shadow the standard library's.
import msgspec

from otel_mlperf.errors import StoreError
from otel_mlperf.portability import IS_WINDOWS
from otel_mlperf.whole_file import read_regular, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

RUN_FILE: Final = "run.json"
FORMAT: Final = 1
"""Format version of the run folder, stored in ``run.json``. Readers refuse higher versions."""
_MAX_BYTES: Final = 64 << 20
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
    """Operating system, as in OpenTelemetry's ``os.type``."""
    world_size: int = 1
    integrations: list[str] = []
    """Names of integrations that detect steps, so that the user's program does not have to report
    steps."""
    is_wrapper: bool = False
    """Whether the user's program only started another program, which was recorded instead."""
    format: int = FORMAT


def read_run_file(folder: Path) -> RunFile:
    """Read the facts of the run in ``folder``.

    Raises:
        StoreError: ``run.json`` is unreadable, or from a newer version.
    """
    file = folder / RUN_FILE
    try:
        facts = msgspec.json.decode(read_regular(file, _MAX_BYTES), type=RunFile)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise StoreError(f"reading {file}: {error}; a run folder requires this file") from error
    if facts.format > FORMAT:
        raise StoreError(
            f"reading {file}: the file has format {facts.format}, this version of otel-mlperf "
            f"supports {FORMAT}; upgrade otel-mlperf"
        )
    return facts


def describe_sharing(folder: str | Path) -> str:
    """Return a message if other users can change the content of a run folder, else ""."""
    path = os.path.abspath(folder)
    if IS_WINDOWS:  # file modes do not show who may write
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
    """Create ``run.json`` for the run ``facts["id"]``, unless another rank has created it.

    Returns:
        Whether the folder now belongs to that run. False if ``run.json`` belongs to another run or
        cannot be parsed; the file is then unchanged.

    Raises:
        OSError: the file cannot be written or read.
    """
    path = os.path.join(folder, RUN_FILE)
    if not os.path.exists(path):
        _write_first(path, {"format": FORMAT, "key": os.urandom(4).hex(), **facts})
    try:
        # Read it again: two runs may have created the file concurrently, and only one has
        # succeeded.
        return bool(_read(path).get("id") == facts["id"])
    except (msgspec.MsgspecError, ValueError, AttributeError):
        return False


def read_key(folder: str | Path) -> str:
    """Return the key that identifies a run folder in the names of journal folders.

    The run id is not enough, because runs in two folders may have the same id. The path is not
    enough either, because a folder may have different paths in containers. The key is therefore
    random and stored in ``run.json``. The key is empty for runs of earlier versions. Without a
    readable ``run.json``, it is derived from the path.
    """
    try:
        key = _read(os.path.join(folder, RUN_FILE)).get("key", "")
    except (OSError, ValueError, msgspec.MsgspecError, AttributeError):
        return _key_of_path(folder)
    # Validate it, because it becomes part of a path and another user may have written the file.
    return key if isinstance(key, str) and _KEY.fullmatch(key) else ""


def _key_of_path(folder: str | Path) -> str:
    return f"{zlib.crc32(os.fsencode(os.path.abspath(folder))):08x}"


def extend_run_file(folder: str, params: Mapping[str, Any], tags: Sequence[str]) -> None:
    """Add parameters and tags to ``run.json``. Unknown fields of newer versions are preserved.

    Raises:
        OSError: the file cannot be written.
        MsgspecError: the file is not JSON.
    """
    about = _read(os.path.join(folder, RUN_FILE))
    about["params"] = {**about.get("params", {}), **params}
    about["tags"] = [*about.get("tags", []), *tags]
    _write_again(folder, about)


def write_integrations(folder: str, names: Sequence[str]) -> None:
    """Store the names of active integrations in ``run.json``, whose unknown fields are preserved.

    Raises:
        OSError: the file cannot be written.
        MsgspecError: the file is not JSON.
    """
    about = _read(os.path.join(folder, RUN_FILE))
    about["integrations"] = [*names]
    _write_again(folder, about)


def write_wrapper(folder: str, *, is_wrapper: bool) -> None:
    """Store ``is_wrapper`` in ``run.json``. Unknown fields of newer versions are preserved.

    Raises:
        OSError: the file cannot be written.
        MsgspecError: the file is not JSON.
    """
    about = _read(os.path.join(folder, RUN_FILE))
    about["is_wrapper"] = is_wrapper
    _write_again(folder, about)


def _write_again(folder: str, about: Mapping[str, Any]) -> None:
    path = os.path.join(folder, RUN_FILE)
    write_whole(path, _text(about), temporary=_temporary_path(path))


def _write_first(path: str, about: Mapping[str, Any]) -> None:
    draft = _temporary_path(path)
    write_whole(draft, _text(about))
    try:
        os.link(draft, path)  # unlike a rename, fails if another rank was first
    except FileExistsError:
        pass
    except OSError:
        # No hard links: the last rank overwrites the file, so all ranks must write the same key.
        key = _key_of_path(os.path.dirname(path))
        write_whole(draft, _text({**about, "key": key}))
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)


def _read(path: str) -> Any:
    return msgspec.json.decode(read_regular(path, _MAX_BYTES))


def _temporary_path(path: str) -> str:
    return f"{os.path.dirname(path)}/.run-{os.getpid()}-{os.urandom(4).hex()}"


def _text(about: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(about), indent=1)
