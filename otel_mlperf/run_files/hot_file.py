"""Records of profiled section calls in a run folder.

``hot/<rank>-<restart>-<pid>.jsonl`` contains a line for each profiled call. The process appends the
line by a single write after the call has ended (see ``json_lines``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from otel_mlperf.run_files.json_lines import append_process_line, read_process_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER: Final = "hot"
"""Name of the folder in a run folder."""
Kind = Literal["calls", "lines", "memory"]


class HotSpot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hot spot: a function, a source line, or a line that allocated memory without freeing it."""

    name: str = ""
    """Name of the function; empty for a line that allocated memory."""
    file: str = ""
    """Source file; empty if the function is written in C."""
    line: int = 0
    calls: int = 0
    """Number of calls, or of executions of a line."""
    own_ns: int = 0
    """For a function: time without callees. For a line: time including callees."""
    total_ns: int = 0
    kept_bytes: int = 0
    blocks: int = 0


class ProfiledCall(msgspec.Struct, frozen=True, kw_only=True):
    """Profile of one call of a section, of time or memory according to ``kind``."""

    section: str
    category: str
    phase: str
    kind: Kind
    rank: int
    restart: int
    unix_ns: int
    """End of the call, Unix time in ns."""
    duration_ns: int = 0
    """Duration, including the profiler's overhead."""
    spots: list[HotSpot] = []
    """The largest hot spots."""
    more: int = 0
    """Number of hot spots that are not in ``spots``."""
    kept_bytes: int = 0
    """Bytes that all lines together have allocated and not freed."""
    peak_bytes: int = 0
    """Maximum of allocated, not yet freed bytes during the call."""
    left_out: str = ""
    """Reason why there is no profile; empty if there is a profile."""
    passed_over: int = 0
    """Number of calls of the section, since its last record, that were not profiled because another
    call was being profiled."""


def append_call(run_folder: str, pid: int, call: ProfiledCall) -> None:
    """Append one record to the file of process ``pid`` in the run folder.

    Raises:
        OSError: the file cannot be written.
    """
    append_process_line(run_folder, FOLDER, pid, call)


def read_calls(run_folder: Path) -> Iterator[ProfiledCall]:
    """Yield all records in a run folder that were written so far, grouped by process."""
    return read_process_lines(run_folder, FOLDER, ProfiledCall)
