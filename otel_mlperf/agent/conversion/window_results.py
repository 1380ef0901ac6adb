"""What did the process that converts a profiler window leave behind?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from otel_mlperf.agent.model.events import SensorReading, WindowConverted
from otel_mlperf.kineto.job import read_result

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUFFIX = ".result"
_TEXT_BLOCK = 1 << 20
_EVENT = b'"ph": "X"'


def read_converted(window: str, instance: str, path: Path) -> WindowConverted | None:
    """The event that a whole result means; None if there is none."""
    try:
        result, begin, check = read_result(path)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return WindowConverted(
        window=window,
        instance=instance,
        digest=result.digest,
        events=result.events,
        rolled_up=result.rolled_up,
        file=path.name,
        check=check,
        begin=begin,
        requests=result.requests,
        end_ns=result.end_ns,
        readings=[SensorReading("", *figure) for figure in result.figures],
    )


def bodies(event: WindowConverted, folder: Path) -> Iterator[tuple[int, bytes | None]]:
    """The requests of a converted window with their items; None for one that is gone."""
    intact = _is_intact(event, folder)
    at = event.begin
    for items, size in event.requests:
        yield items, _part(folder / event.file, at, size) if intact else None
        at += size


def count_events(trace: Path) -> int:
    """How many events the text of a trace names that could not be read: a count of words."""
    count, rest = 0, b""
    try:
        with trace.open("rb") as file:
            while block := file.read(_TEXT_BLOCK):
                text = rest + block
                count += text.count(_EVENT)
                rest = text[-len(_EVENT) + 1 :]
    except OSError:
        return count
    return count


def _is_intact(event: WindowConverted, folder: Path) -> bool:
    try:
        return read_result(folder / event.file)[2] == event.check
    except (OSError, ValueError, msgspec.MsgspecError):
        return False


def _part(path: Path, at: int, size: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            file.seek(at)
            body = file.read(size)
    except OSError:
        return None
    return body if len(body) == size else None
