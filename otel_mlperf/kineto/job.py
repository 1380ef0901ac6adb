"""Conversion job of the agent: the request for one window, and the result file.

The agent never loads what a conversion needs: a separate process runs the conversion and leaves
one file, a line of JSON followed by the requests. The file is complete or absent.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf.trace_sampler import Sampler  # noqa: TC001 - msgspec reads it
from otel_mlperf.whole_file import open_at_once, replacing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One window that is to be converted."""

    window: str
    """Path of its description."""
    run_folder: str
    result: str
    """Path of the file to leave."""
    resource: dict[str, Any]
    """Attributes of the process that was profiled."""
    is_sent: bool
    """Whether requests are wanted."""
    spans: int
    """Spans of the run's trace that may come of it."""
    by_trace: dict[str, int]
    """Spans of each step's trace, recorded sections included."""
    sampler: Sampler | None = None
    """Decides which traces are sent; None: all."""
    limit_s: int
    """After so many seconds it gives up."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversion made."""

    digest: str
    events: int
    rolled_up: int
    requests: list[tuple[int, int]] = []
    """Of each its number of events and of bytes."""
    end_ns: int = 0
    """When the window ended, Unix time."""
    figures: list[tuple[str, dict[str, str], float]] = []
    """Points of metrics: name, labels, value."""


def write_result(path: Path, result: Result, bodies: Iterable[bytes]) -> None:
    """Writes the file, whole or not at all."""
    with replacing(path, is_durable=True) as name, open(name, "wb") as file:
        file.write(msgspec.json.encode(result) + b"\n")
        file.writelines(bodies)


def read_result(path: Path) -> tuple[Result, int, int]:
    """The first line of the file, its length, and the CRC-32 of all.

    Raises:
        OSError: it cannot be read.
        msgspec.MsgspecError: it is none.
    """
    check = 0
    with open(path, "rb", opener=open_at_once) as file:
        line = file.readline()
        check = zlib.crc32(line)
        # In pieces: the agent, which reads it, has a bound of memory.
        while block := file.read(1 << 20):
            check = zlib.crc32(block, check)
    return msgspec.json.decode(line, type=Result), len(line), check
