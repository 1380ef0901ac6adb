"""Which fields of an entry of ``traceEvents`` become columns?

One type for each ``ph``: msgspec decodes into them, and skips all other fields where they stand.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Final

import msgspec

from otel_mlperf.kineto.trace_events import NONE

Whole = int | str | None


class Args(msgspec.Struct, gc=False):
    """Of an event with a duration."""

    external: Whole = msgspec.field(default=NONE, name="External id")
    sequence: Whole = msgspec.field(default=NONE, name="Sequence number")
    forward_thread: Whole = msgspec.field(default=NONE, name="Fwd thread id")
    device: Whole = NONE
    stream: Whole = NONE
    correlation: Whole = NONE
    bytes: Whole = NONE


class MemoryArgs(msgspec.Struct, gc=False):
    """Of a ``[memory]`` instant."""

    device_type: Whole = msgspec.field(default=NONE, name="Device Type")
    device: Whole = msgspec.field(default=NONE, name="Device Id")
    address: Whole = msgspec.field(default=NONE, name="Addr")
    size: Whole = msgspec.field(default=NONE, name="Bytes")
    allocated: Whole = msgspec.field(default=NONE, name="Total Allocated")
    reserved: Whole = msgspec.field(default=NONE, name="Total Reserved")


class Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with its duration."""

    cat: str = ""
    name: str = ""
    pid: Whole = None
    tid: Whole = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


class Begin(msgspec.Struct, gc=False, tag_field="ph", tag="B"):
    """The first half of an event."""

    cat: str = ""
    name: str = ""
    pid: Whole = None
    tid: Whole = None
    ts: Any = None
    args: Args | None = None


class End(msgspec.Struct, gc=False, tag_field="ph", tag="E"):
    """The second half of what began last on the same track."""

    pid: Whole = None
    tid: Whole = None
    ts: Any = None


class FlowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """Where an arrow leaves."""

    id: Whole = None
    pid: Whole = None
    tid: Whole = None
    ts: Any = None
    cat: str = ""


class FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """Where an arrow arrives."""

    id: Whole = None
    pid: Whole = None
    tid: Whole = None
    ts: Any = None
    cat: str = ""


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """A moment; those of the allocator have arguments."""

    name: str = ""
    pid: Whole = None
    tid: Whole = None
    ts: Any = None
    args: MemoryArgs | None = None


class Meta(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """Names of processes and threads."""

    name: str = ""
    pid: Whole = None
    tid: Whole = None
    args: dict[str, Any] | None = None


OTHERS: Final = {
    phase: msgspec.defstruct(f"Phase_{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)
    for phase in "IbneSTptFCNODPRcVva(),"
}
"""Counted, and no more: counters, object life cycles, marks, … of other tools."""

KINDS: Final[tuple[type[msgspec.Struct], ...]] = (
    Complete,
    Begin,
    End,
    FlowStart,
    FlowEnd,
    Instant,
    Meta,
    *OTHERS.values(),
)
PHASES: Final = {kind: str(kind.__struct_config__.tag) for kind in KINDS}
ENTRY: Final[Any] = functools.reduce(operator.or_, KINDS)
