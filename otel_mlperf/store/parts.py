"""Files that make up a table, such that readers see each row once during writes and merges.

A table is a folder of parts, ``<host>-<number>.parquet``. A merged part names the numbers that it
replaces, ``<host>-<first>_<last>.parquet``. Replaced parts that are still in the folder no longer
count. Next to the tables, ``<host>.json`` records the time up to which those of a host are
complete.
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
# As ``safe_name`` makes it: DuckDB treats a name with ``*``, ``?`` or ``[`` as a pattern.
_NAME = re.compile(
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9._-]*)-(?P<first>\d{6,})(?:_(?P<last>\d{6,}))?\.parquet"
)
_LISTINGS = 100


class TablePart(NamedTuple):
    """Part of a table: one file with the numbers ``first`` to ``last`` of one host."""

    host: str
    first: int
    last: int
    path: Path


def table_folder(folder: Path, table: str) -> Path:
    """Return the folder of the parts of ``table`` in a run folder."""
    return folder / "tables" / table


def part_name(host: str, first: int, last: int | None = None) -> str:
    """Return the file name of a part; with ``last``, of a merged one."""
    numbers = f"{first:06d}" if last is None else f"{first:06d}_{last:06d}"
    return f"{safe_name(host)}-{numbers}{SUFFIX}"


def window_host(digest: str) -> str:
    """Return the substitute for the host in parts of a profiler window.

    It is the same for all importers.
    """
    return f"window-{digest[:16]}"


def parse(path: Path) -> TablePart | None:
    """Parse a part from its file name; None for unfinished and foreign files."""
    name = _NAME.fullmatch(path.name)
    if name is None or path.name.startswith("."):
        return None
    first = int(name["first"])
    return TablePart(name["host"], first, int(name["last"] or first), path)


def live_parts(folder: Path, host: str | None = None) -> list[TablePart]:
    """Return the parts of a table folder that count, by host and number; empty if it is missing.

    With a ``host``, only its own: for the parts of hundreds of other hosts only the name is read.

    Raises:
        StoreError: a link leads there.
    """
    found = _parsed(folder, _stable_names(folder, host), host)
    parts = sorted(found, key=lambda part: (part.host, part.first, -part.last))
    live: list[TablePart] = []
    for part in parts:
        # Ranges nest and never cross, so the widest one that starts first covers those after it.
        if live and live[-1].host == part.host and part.last <= live[-1].last:
            continue
        live.append(part)
    return live


def covered_parts(folder: Path, host: str) -> list[TablePart]:
    """Return the parts of a host whose rows are also in a merged part, to be removed."""
    live = {part.path for part in live_parts(folder, host)}
    parts = _parsed(folder, _names(folder, host), host)
    return [part for part in parts if part.path not in live]


def last_number(folder: Path, table: str, host: str) -> int:
    """Return the highest part number that ``host`` has used in ``table``; 0 for none."""
    place = table_folder(folder, table)
    return max((part.last for part in _parsed(place, _names(place, host), host)), default=0)


def write_as_of(folder: Path, host: str, unix_ns: int) -> None:
    """Record that everything that had ended on ``host`` by that time is in the tables.

    Raises:
        OSError: the disk refuses.
    """
    place = _as_of_file(folder, host)
    make_folder(place.parent)
    write_whole(place, json.dumps({_AS_OF: unix_ns}).encode())


def read_as_of(folder: Path, host: str) -> int | None:
    """Return the Unix time in ns up to which the tables of ``host`` are complete; None: unknown."""
    try:
        return int(json.loads(read_regular(_as_of_file(folder, host)))[_AS_OF])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _as_of_file(folder: Path, host: str) -> Path:
    return folder / "tables" / f"{safe_name(host)}.json"


def _stable_names(folder: Path, host: str | None) -> list[str]:
    """Return a listing during which no merge ran: the second one was equal."""
    # A directory that changes while it is listed may show neither the merged part nor a part that
    # it replaces, or both. Two equal listings had no merge between them.
    before = _names(folder, host)
    for _ in range(_LISTINGS):
        after = _names(folder, host)
        if after == before:
            break
        before = after
    return before


def _names(folder: Path, host: str | None) -> list[str]:
    begin = "" if host is None else f"{safe_name(host)}-"
    try:
        # Regular files only: opening a pipe that another user has put there would block.
        return sorted(name for name in regular_files(folder) if name.startswith(begin))
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise StoreError(
            f"reading {folder}: {error.strerror}; replace the link by the folder itself"
        ) from error


def _parsed(folder: Path, names: list[str], host: str | None) -> list[TablePart]:
    parts = [part for name in names if (part := parse(folder / name)) is not None]
    # The name of one host may be a prefix of another one.
    return parts if host is None else [part for part in parts if part.host == safe_name(host)]
