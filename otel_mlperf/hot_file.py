"""Records of profiled section calls in a run folder.

``hot/<rank>-<restart>-<pid>.jsonl`` has a line for each call. The process that made the call
appends it, once, when the call is over. Each line is therefore whole whatever ends the process
next; readers skip lines that are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from otel_mlperf.process_lines import append_process_line, read_process_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER: Final = "hot"
"""Of a run folder."""
Kind = Literal["calls", "lines", "memory"]


class HotSpot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function that was called, a line of one, or a line that allocated what was not freed."""

    name: str = ""
    """The function; empty: a line that allocated."""
    file: str = ""
    """Empty: it is written in C."""
    line: int = 0
    calls: int = 0
    """Of a line, how often it ran."""
    own_ns: int = 0
    """Without what it called; of a line with that."""
    total_ns: int = 0
    kept_bytes: int = 0
    blocks: int = 0


class ProfiledCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a section, seen by a profiler."""

    section: str
    category: str
    phase: str
    kind: Kind
    rank: int
    restart: int
    unix_ns: int
    """When it ended."""
    duration_ns: int = 0
    """With what the profiler took."""
    spots: list[HotSpot] = []
    """The largest."""
    more: int = 0
    """So many others."""
    kept_bytes: int = 0
    """That all lines together allocated and did not free."""
    peak_bytes: int = 0
    """The most of it at one time."""
    left_out: str = ""
    """Why there is nothing of it; empty: there is."""
    passed_over: int = 0
    """So many calls of the section, since its last line, ran while another one was profiled."""


def append_call(run_folder: str, pid: int, call: ProfiledCall) -> None:
    """Writes one call.

    Raises:
        OSError: the place refuses.
    """
    append_process_line(run_folder, FOLDER, pid, call)


def read_calls(run_folder: Path) -> Iterator[ProfiledCall]:
    """All that were written so far, by process."""
    return read_process_lines(run_folder, FOLDER, ProfiledCall)
