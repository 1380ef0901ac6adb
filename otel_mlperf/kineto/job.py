"""Conversion job of the agent: the description of one window to convert, and the result file.

A separate process runs the conversion, so that the agent never imports the libraries that the
conversion requires. That process writes one result file: a line of JSON, then the encoded OTLP
requests. The file is either complete or absent.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf.settings.trace_sampler import Sampler  # noqa: TC001 - msgspec reads it
from otel_mlperf.whole_file import open_without_links, replacing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one profiler window to convert, passed to the converting process."""

    window: str
    """Path of the recorder's description of the window."""
    run_folder: str
    result: str
    """Path of the result file."""
    resource: dict[str, Any]
    """Resource attributes of the profiled process."""
    is_sent: bool
    """Whether the result is to contain requests for a server."""
    spans: int
    """Maximum number of spans to send in the trace of the run."""
    by_trace: dict[str, int]
    """Maximum number of spans to send in the trace of each step, recorded sections included."""
    sampler: Sampler | None = None
    """Selects the traces to send; None: all traces."""
    limit_s: int
    """Seconds after which the converting process is ended."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a conversion, stored as the first line of the result file."""

    digest: str
    events: int
    rolled_up: int
    requests: list[tuple[int, int]] = []
    """Number of events and number of bytes of each request in the file."""
    end_ns: int = 0
    """End of the window, in nanoseconds of Unix time."""
    figures: list[tuple[str, dict[str, str], float]] = []
    """Metric points of the window: name, labels and value of each."""


def write_result(path: Path, result: Result, bodies: Iterable[bytes]) -> None:
    """Write the result file atomically: completely or not at all."""
    with replacing(path, is_durable=True) as name, open(name, "wb") as file:
        file.write(msgspec.json.encode(result) + b"\n")
        file.writelines(bodies)


def read_result(path: Path) -> tuple[Result, int, int]:
    """Return the result in the file's first line, that line's length, and the file's CRC-32.

    Raises:
        OSError: the file cannot be read.
        msgspec.MsgspecError: the file is not a result file.
    """
    check = 0
    with open(path, "rb", opener=open_without_links) as file:
        line = file.readline()
        check = zlib.crc32(line)
        # Read in blocks, because the memory of the calling agent is limited.
        while block := file.read(1 << 20):
            check = zlib.crc32(block, check)
    return msgspec.json.decode(line, type=Result), len(line), check
