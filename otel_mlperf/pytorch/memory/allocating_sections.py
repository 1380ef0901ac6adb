"""In which section was each block allocated that is in use?

The allocator's history has the time of each allocation, where it is kept; the journal's ring has
the sections of the process that have ended, as far back as it reaches; the rest are open.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf.journal.layout import ROW, ROW_BYTES, Kind
from otel_mlperf.pytorch.memory.allocation_history import blocks_in_use, bytes_by
from otel_mlperf.recorder.sections.section_context import CURRENT, sections_above

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_SECTION: Final = int(Kind.SECTION)
_NOT_KNOWN: Final = "not known"


class _Section(NamedTuple):
    start_ns: int
    end_ns: int
    entry: int


def bytes_by_section(recorder: Recorder, snapshot: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Bytes and blocks by the name of the innermost section; empty without a history.

    Blocks that are older than the history, or the ring, are ``not known``.
    """
    times_ns = _allocated_at(snapshot)
    if not times_ns:
        return {}
    blocks = list(blocks_in_use(snapshot))
    allocated_ns = [times_ns.get(block.get("address"), 0) for block in blocks]
    return bytes_by(_names_at(recorder, allocated_ns), blocks)


def _allocated_at(snapshot: Mapping[str, Any]) -> dict[Any, int]:
    """By address, when it was given out last; monotonic ns."""
    before_ns = time.time_ns() - time.monotonic_ns()
    return {
        entry["addr"]: entry["time_us"] * 1_000 - before_ns
        for trace in snapshot["device_traces"]
        for entry in trace
        if entry["action"] == "alloc" and "time_us" in entry
    }


def _names_at(recorder: Recorder, times_ns: list[int]) -> list[str]:
    """Of the innermost section at each of these times."""
    found = [_NOT_KNOWN] * len(times_ns)
    order = sorted(range(len(times_ns)), key=times_ns.__getitem__)
    sections = sorted((*_ended(recorder), *_still_open()))
    around: list[_Section] = []
    following = 0
    for at in order:
        now_ns = times_ns[at]
        while following < len(sections) and sections[following].start_ns <= now_ns:
            around.append(sections[following])
            following += 1
        # Of those that hold it the one that began last; what has ended ends for all that follow.
        around = [one for one in around if one.end_ns >= now_ns]
        if around:
            found[at] = recorder.registry.about(around[-1].entry)[0]
    return found


def _ended(recorder: Recorder) -> Iterator[_Section]:
    shape = recorder.journal.shape
    begin = shape.ring_at
    ring = bytes(recorder.journal.buffer[begin : begin + shape.rows * ROW_BYTES])
    for start, end, _, _, _, _, entry, flags, slot in ROW.iter_unpack(ring):
        if slot and flags & 15 == _SECTION:
            yield _Section(start, end, entry)


def _still_open() -> Iterator[_Section]:
    now_ns = time.monotonic_ns()
    return (_Section(one.t0, now_ns, one.entry) for one in sections_above(CURRENT.get()))
