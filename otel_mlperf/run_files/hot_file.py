"""Records of profiled section calls in a run folder.

``hot/<rank>-<restart>-<pid>.jsonl`` has a line for each call. The process that made the call
appends it, once, when the call is over. Each line is therefore whole whatever ends the process
next; readers skip lines that are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from otel_mlperf.run_files.process_lines import append_process_line, read_process_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER: Final = "hot"
"""Folder in a run folder."""
Kind = Literal["calls", "lines", "memory"]


class HotSpot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hot spot: a called function, a line of one, or a line that allocated unfreed memory."""

    name: str = ""
    """The function; empty for a line that allocated."""
    file: str = ""
    """Empty if it is written in C."""
    line: int = 0
    calls: int = 0
    """For a line, how often it ran."""
    own_ns: int = 0
    """Time without its callees; for a line including them."""
    total_ns: int = 0
    kept_bytes: int = 0
    blocks: int = 0


class ProfiledCall(msgspec.Struct, frozen=True, kw_only=True):
    """Profile of one call of a section."""

    section: str
    category: str
    phase: str
    kind: Kind
    rank: int
    restart: int
    unix_ns: int
    """When it ended."""
    duration_ns: int = 0
    """Duration, including the profiler's overhead."""
    spots: list[HotSpot] = []
    """The largest spots."""
    more: int = 0
    """Number of further spots."""
    kept_bytes: int = 0
    """Bytes that all lines together allocated and did not free."""
    peak_bytes: int = 0
    """Peak of these bytes."""
    left_out: str = ""
    """Reason for which there is no profile; empty if there is one."""
    passed_over: int = 0
    """Calls of the section, since its last line, that ran while another one was profiled."""


def append_call(run_folder: str, pid: int, call: ProfiledCall) -> None:
    """Append one call.

    Raises:
        OSError: the place refuses.
    """
    append_process_line(run_folder, FOLDER, pid, call)


def read_calls(run_folder: Path) -> Iterator[ProfiledCall]:
    """Yield all calls written so far, by process."""
    return read_process_lines(run_folder, FOLDER, ProfiledCall)
