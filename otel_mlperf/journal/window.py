"""Descriptions of profiler windows, which the training process stores next to each trace.

Next to the Chrome trace ``<name>.pt.trace.json``, ``<name>.window.json`` is stored, written last
and as a whole. If it exists, the trace is complete and any process that finds it can convert it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from otel_mlperf.errors import JournalError
from otel_mlperf.whole_file import read_regular, write_whole

if TYPE_CHECKING:
    from pathlib import Path

TRACE_SUFFIX = ".pt.trace.json"
WINDOW_SUFFIX = ".window.json"
FOLDER = "profiles"
"""Folder of profiler windows, inside a run folder."""


class WindowStep(msgspec.Struct, frozen=True):
    """One profiled step."""

    phase: str
    n: int
    number: int
    span: str
    """Its span id, 16 hexadecimal digits."""
    trace: str
    """Its trace id, 32 hexadecimal digits."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One profiler window of one process."""

    run_id: str
    restart: int
    rank: int
    world_size: int
    pid: int
    number: int
    """Number of the window in its process, from 0."""
    trace: str
    """Name of the trace file next to it."""
    parent: str
    """Span id of the run-trace section that exported it: for events outside any step."""
    anchor: tuple[int, int] = (0, 0)
    """Unix and monotonic ns of the recorder's one anchor, on which its sections' times are based.
    """
    steps: list[WindowStep]
    start: tuple[int, int]
    """Unix and monotonic ns, read together, at its start."""
    end: tuple[int, int]
    activities: list[str]
    """Recorded activities: ``cpu``, ``cuda``, …"""
    is_cut: bool = False
    """Whether it ended early: at the limit of events, say, or at a profiler of the program's own.
    """
    problem: str = ""
    """Why events are missing; empty: none are."""


def write_window(folder: Path, window: Window) -> Path:
    """Write the description of a finished window, whole or not at all."""
    place = folder / (window.trace.removesuffix(TRACE_SUFFIX) + WINDOW_SUFFIX)
    write_whole(place, msgspec.json.encode(window))
    return place


def read_window(path: Path) -> Window:
    """Read a window's description.

    Raises:
        JournalError: the file cannot be read or is no such description.
    """
    try:
        window = msgspec.json.decode(read_regular(path), type=Window)
        # A path could lead out of the run folder, which may be another user's.
        if window.trace != os.path.basename(window.trace) or window.trace in ("", ".", ".."):
            raise ValueError(f"{window.trace!r} is no name of a file beside it")
        return window
    except (OSError, ValueError) as error:  # no JSON, no such shape, or no text
        raise JournalError(
            f"reading the profiler window {path}: {error}; delete it to leave that window out"
        ) from error
