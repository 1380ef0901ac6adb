"""Valid shapes of a journal's entries and payloads; anything else was overwritten.

Readers of a journal rely on these shapes. One stray store of the program into its own memory must
damage only what it hit.

The device times of the sections of one root are a payload of their own. ``device clock`` is the
clock of the device as written here: it starts at the first stamp.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Final, TypedDict

import msgspec

_Time = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
_Id = Annotated[int, msgspec.Meta(ge=0)]


class SectionTimes(msgspec.Struct, frozen=True, array_like=True):
    """Times at which one section's stamps were put and passed, ns after the first stamp of all."""

    span: _Id
    entry: _Id
    is_same_stream: bool
    """Whether its stamps are in the same stream as those of the first section."""
    host_begin: _Time
    """When its start stamp was put, by the host's clock."""
    host_end: _Time
    begin: _Time
    """When the start stamp was passed, by the device's clock."""
    end: _Time


class DeviceTimes(msgspec.Struct, frozen=True, array_like=True):
    """Device times of sections that are reported together, as ``d`` of a payload."""

    root: _Id
    """The root span of their trace."""
    device: _Id
    is_step: bool
    """Whether the first section is the step itself."""
    is_mixed: bool
    """Whether part of the step is excluded from it: a validation, a checkpoint."""
    host_ns: _Time
    """When the first stamp was put, by the host's monotonic clock."""
    device_ns: _Time
    """When the first stamp was passed, by the device's clock."""
    low: _Time
    """Lower bound of host clock minus device clock, according to these stamps."""
    high: _Time
    """Upper bound of that difference."""
    sections: list[SectionTimes]


_Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Used = Annotated[int, msgspec.Meta(ge=-(1 << 56), le=1 << 56)]
_Value = str | int | float | bool | None | dict[str, str]
_Attributes = dict[str, _Value | list[_Value]]
_Link = tuple[_Id, _Id, _Id, _Id, _Attributes]
_Event = tuple[_Size, str, _Attributes]
_SHAPES: Final[dict[tuple[str, ...], Any]] = {
    ("section",): tuple[str, str, str, str, _Attributes],
    ("track",): tuple[str, _Size, int, str, bool],
    ("cell", "aggregate"): tuple[
        str, str, str, str, str, str, _Size, str, str, bool, bool, _Size
    ],
} | {
    ("cell", kind): tuple[str, str, str, str, list[tuple[str, str]]]
    for kind in ("counter", "updowncounter", "gauge", "histogram")
}  # fmt: skip


class Payload(TypedDict, total=False):
    """Data that does not fit into a row."""

    a: _Attributes
    """Attributes."""
    e: list[str]
    """Type, message and location of an exception."""
    l: list[_Link]  # noqa: E741 - as it is written
    """Links to other spans: high and low half of the trace id, span id, flags, attributes."""
    s: tuple[int, str]
    """Code and description of the status that was set through OpenTelemetry."""
    v: list[_Event]
    """Events that were added through it: monotonic time in ns, name, attributes."""
    w: _Size
    """Events for which there was no room."""
    r: bool
    """Whether the parent is a span of another process."""
    n: _Value
    """Samples of a step."""
    t: _Value
    """Tokens of a step."""
    m: _Value
    """Elements of the batches of a step."""
    f: _Value
    """Floating point operations of a step."""
    x: _Size
    """Nanoseconds inside the section that are excluded from it."""
    u: list[_Used | None]
    """Resource usage of a section: one number for each of ``names.MEASURES``."""
    g: list[list[_Size]]
    """Shares of aggregated sections in a step."""
    c: str
    """Tracestate of a foreign trace."""
    d: DeviceTimes
    """Device times of sections: belongs to no row."""


_payload: Final = msgspec.msgpack.Decoder(Payload).decode


def parse_payload(text: bytes) -> Any:
    """Decode a payload.

    Raises:
        ValueError: it is no valid payload.
    """
    try:
        return _payload(text)
    except RecursionError as error:
        raise ValueError("too deeply nested lists") from error


def parse_entry(text: bytes) -> list[Any]:
    """Decode an entry (see ``journal.layout``).

    Raises:
        ValueError: it is no valid entry.
    """
    try:
        entry = msgspec.msgpack.decode(text, type=list[Any])
    except RecursionError as error:
        raise ValueError("too deeply nested lists") from error
    kind = tuple(entry[: 2 if entry[:1] == ["cell"] else 1])
    shape = None
    with contextlib.suppress(TypeError):  # not hashable, so no text
        shape = _SHAPES.get(kind)
    if shape is None:
        raise ValueError("the entry has an unknown kind")
    msgspec.convert(entry, shape)
    return entry
