"""Types of the entries of ``traceEvents``, and the pairing of start and end entries.

msgspec decodes each entry into the type of its ``ph`` and skips all other fields. An event may be
written as two entries, a start and an end. By the format's definition, an end belongs to the open
event that started last on its track.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.kineto.reading.times import NO_TIME, parse_times
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.kineto.reading.damage import DamageLog

Whole = int | str | None


class Args(msgspec.Struct, gc=False):
    """Arguments of an event with a duration."""

    external: Whole = msgspec.field(default=NONE, name="External id")
    sequence: Whole = msgspec.field(default=NONE, name="Sequence number")
    forward_thread: Whole = msgspec.field(default=NONE, name="Fwd thread id")
    device: Whole = NONE
    stream: Whole = NONE
    correlation: Whole = NONE
    bytes: Whole = NONE
    number: Whole = msgspec.field(default=NONE, name="Ev Idx")
    correlation_id: Whole = NONE
    """Correlation in traces of XLA, which use another name for it."""


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of a ``[memory]`` instant."""

    device_type: Whole = msgspec.field(default=NONE, name="Device Type")
    device: Whole = msgspec.field(default=NONE, name="Device Id")
    address: Whole = msgspec.field(default=NONE, name="Addr")
    size: Whole = msgspec.field(default=NONE, name="Bytes")
    allocated: Whole = msgspec.field(default=NONE, name="Total Allocated")
    reserved: Whole = msgspec.field(default=NONE, name="Total Reserved")
    number: Whole = msgspec.field(default=NONE, name="Ev Idx")


class Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """Event with a duration."""

    cat: str = ""
    name: str = ""
    pid: Whole = None
    tid: Whole = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


class Begin(msgspec.Struct, gc=False, tag_field="ph", tag="B"):
    """Start of an event whose end is a separate entry."""

    cat: str = ""
    name: str = ""
    pid: Whole = None
    tid: Whole = None
    ts: Any = None
    args: Args | None = None


class End(msgspec.Struct, gc=False, tag_field="ph", tag="E"):
    """End of the open event that started last on the same track."""

    pid: Whole = None
    tid: Whole = None
    ts: Any = None


class _AsyncHalf(msgspec.Struct, gc=False):
    cat: str = ""
    name: str = ""
    id: Whole = None
    id2: dict[str, Any] | None = None
    scope: str = ""
    pid: Whole = None
    ts: Any = None


class AsyncBegin(_AsyncHalf, gc=False, tag_field="ph", tag="b"):
    """Start of an asynchronous event."""

    args: Args | None = None


class AsyncEnd(_AsyncHalf, gc=False, tag_field="ph", tag="e"):
    """End of an asynchronous event, with the category, scope and id of the event's start."""


class OldAsyncBegin(AsyncBegin, tag_field="ph", tag="S"):
    """Start of an asynchronous event in older files."""


class OldAsyncEnd(AsyncEnd, tag_field="ph", tag="F"):
    """End of an asynchronous event in older files."""


class FlowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """Start of an arrow."""

    id: Whole = None
    pid: Whole = None
    tid: Whole = None
    ts: Any = None
    cat: str = ""


class FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """End of an arrow."""

    id: Whole = None
    pid: Whole = None
    tid: Whole = None
    ts: Any = None
    cat: str = ""


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """Event at one time, without duration; only the allocator's instants have arguments."""

    name: str = ""
    pid: Whole = None
    tid: Whole = None
    ts: Any = None
    args: MemoryArgs | None = None


class Meta(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """Metadata: the name or label of a process or thread."""

    name: str = ""
    pid: Whole = None
    tid: Whole = None
    args: dict[str, Any] | None = None


OTHERS: Final = {
    phase: msgspec.defstruct(f"Phase_{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)
    for phase in "InTptCNODPRcVva(),"
}


"""Types of entries that are only counted: counters, object life cycles, marks and others."""


KINDS: Final[tuple[type[msgspec.Struct], ...]] = (
    Complete,
    Begin,
    End,
    FlowStart,
    FlowEnd,
    Instant,
    Meta,
    AsyncBegin,
    AsyncEnd,
    OldAsyncBegin,
    OldAsyncEnd,
    *OTHERS.values(),
)


PHASES: Final = {kind: str(kind.__struct_config__.tag) for kind in KINDS}


ENTRY: Final[Any] = functools.reduce(operator.or_, KINDS)


class BeginEndPairs:
    """Pairing of each end with the open event that started last on its track."""

    def __init__(self, damage: DamageLog) -> None:
        self._damage = damage
        self._open: dict[tuple[Whole, Whole], list[tuple[Begin, int]]] = {}

    def pair(self, halves: Iterable[tuple[Begin | End, int]]) -> list[tuple[Complete, int]]:
        """Return the events that are now complete, each with the byte offset of its start."""
        pairs = []
        for half, position in halves:
            track = (half.pid, half.tid)
            if isinstance(half, Begin):
                self._open.setdefault(track, []).append((half, position))
            elif self._open.get(track):
                begin, begin_position = self._open[track].pop()
                pairs.append((join_halves(begin, half, begin.tid), begin_position))
            else:
                self._damage.add("unmatched_end", position)
        return pairs

    def close(self) -> None:
        """Log events without an end as damage, because their duration is not known."""
        for begins in self._open.values():
            for begin, position in begins:
                self._damage.add("unmatched_begin", position, begin.name)


def join_halves(begin: Begin | AsyncBegin, end: End | AsyncEnd, tid: Whole = None) -> Complete:
    """Return the event between a start and an end entry; ``tid`` is the event's thread."""
    start_ns, end_ns = parse_times(lambda: (begin.ts, end.ts), 2).tolist()
    known = NO_TIME not in (start_ns, end_ns)
    return Complete(
        cat=begin.cat,
        name=begin.name,
        pid=begin.pid,
        tid=tid,
        ts=begin.ts,
        # Text in microseconds, so that it is parsed exactly, like a duration in the file.
        dur=f"{end_ns - start_ns}e-3" if known else end.ts,
        args=begin.args,
    )
