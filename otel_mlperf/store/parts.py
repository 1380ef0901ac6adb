"""Files of a table, named so that readers see each row exactly once during writes and merges.

A table is a folder of parts, ``<host>-<number>.parquet``. The name of a merged part contains the
range of numbers that it replaces, ``<host>-<first>_<last>.parquet``. Readers ignore replaced parts
that are still in the folder. Next to the tables, ``<host>.json`` contains the time up to which the
tables of this host are complete.
"""

from __future__ import annotations

import json
import re
from pathlib import Path  # noqa: TC003 - NamedTuple reads its annotations
from typing import NamedTuple

from otel_mlperf.errors import StoreError
from otel_mlperf.ids import safe_name
from otel_mlperf.whole_file import make_folder, read_regular, regular_files, write_whole

SUFFIX = ".parquet"
_AS_OF = "as_of_ns"
# Only characters that safe_name() allows: DuckDB would treat ``*``, ``?``, ``[`` as a pattern.
_NAME = re.compile(
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9._-]*)-(?P<first>\d{6,})(?:_(?P<last>\d{6,}))?\.parquet"
)
_LISTINGS = 100


class TablePart(NamedTuple):
    """Part of a table: one file of one host, with the part numbers ``first`` to ``last``."""

    host: str
    first: int
    last: int
    path: Path


def table_folder(folder: Path, table: str) -> Path:
    """Return the folder with the parts of ``table`` in the run folder ``folder``."""
    return folder / "tables" / table


def part_name(host: str, first: int, last: int | None = None) -> str:
    """Return the file name of the part ``first``, or of the merged part ``first`` to ``last``."""
    numbers = f"{first:06d}" if last is None else f"{first:06d}_{last:06d}"
    return f"{safe_name(host)}-{numbers}{SUFFIX}"


def window_host(digest: str) -> str:
    """Return the name that is used as host in the parts of a profiler window.

    The name depends only on the trace's digest: a repeated import on any host replaces the parts.
    """
    return f"window-{digest[:16]}"


def parse(path: Path) -> TablePart | None:
    """Parse the file name of a part; return None if the file is unfinished or not a part."""
    name = _NAME.fullmatch(path.name)
    if name is None or path.name.startswith("."):
        return None
    first = int(name["first"])
    return TablePart(name["host"], first, int(name["last"] or first), path)


def live_parts(folder: Path, host: str | None = None) -> list[TablePart]:
    """Return the valid parts of a table folder, sorted by host and number.

    Parts that a merged part replaces are omitted. If ``host`` is given, only parts of this host are
    returned, and file names of other hosts are not parsed. The list is empty if the folder is
    missing.

    Raises:
        StoreError: the folder is a symbolic link.
    """
    found = _parsed(folder, _stable_names(folder, host), host)
    parts = sorted(found, key=lambda part: (part.host, part.first, -part.last))
    live: list[TablePart] = []
    for part in parts:
        # Ranges never overlap partially: a part is replaced if the previous range contains its own.
        if live and live[-1].host == part.host and part.last <= live[-1].last:
            continue
        live.append(part)
    return live


def covered_parts(folder: Path, host: str) -> list[TablePart]:
    """Return the parts of ``host`` that a merged part replaces, so that they can be removed."""
    live = {part.path for part in live_parts(folder, host)}
    parts = _parsed(folder, _names(folder, host), host)
    return [part for part in parts if part.path not in live]


def last_number(folder: Path, table: str, host: str) -> int:
    """Return the highest part number of ``host`` in ``table``; 0 if there are no parts."""
    place = table_folder(folder, table)
    return max((part.last for part in _parsed(place, _names(place, host), host)), default=0)


def write_as_of(folder: Path, host: str, unix_ns: int) -> None:
    """Record that the tables contain everything that ended on ``host`` before ``unix_ns``.

    Raises:
        OSError: writing fails.
    """
    place = _as_of_file(folder, host)
    make_folder(place.parent)
    write_whole(place, json.dumps({_AS_OF: unix_ns}).encode())


def read_as_of(folder: Path, host: str) -> int | None:
    """Return the Unix time in ns up to which the tables of ``host`` are complete, or None.

    None means that the time is not recorded or unreadable.
    """
    try:
        return int(json.loads(read_regular(_as_of_file(folder, host)))[_AS_OF])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _as_of_file(folder: Path, host: str) -> Path:
    return folder / "tables" / f"{safe_name(host)}.json"


def _stable_names(folder: Path, host: str | None) -> list[str]:
    """Return the file names of a folder; listing is repeated until two listings are equal."""
    # The listing of a folder that changes concurrently may contain both the merged part and a part
    # that it replaces, or neither. If two listings are equal, no merge happened in between.
    before = _names(folder, host)
    for _ in range(_LISTINGS):
        after = _names(folder, host)
        if after == before:
            break
        before = after
    return before


def _names(folder: Path, host: str | None) -> list[str]:
    prefix = "" if host is None else f"{safe_name(host)}-"
    try:
        # Regular files only, because opening a pipe that another user has created would block.
        return sorted(name for name in regular_files(folder) if name.startswith(prefix))
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise StoreError(
            f"reading {folder}: {error.strerror}; replace the link by the folder itself"
        ) from error


def _parsed(folder: Path, names: list[str], host: str | None) -> list[TablePart]:
    parts = [part for name in names if (part := parse(folder / name)) is not None]
    # Whole host names are compared, because the name of a host may be a prefix of another's.
    return parts if host is None else [part for part in parts if part.host == safe_name(host)]
