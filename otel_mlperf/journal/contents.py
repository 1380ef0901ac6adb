"""Schemas of a journal's entries and payloads, and validating decoders of both.

Content that violates a schema was overwritten, for example by a bug in the user's native code.
Validation limits the damage to the overwritten content.

The device times of all sections with the same root (see ``layout``) are stored in one separate
payload, relative to the payload's first stamp.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Final, TypedDict

import msgspec

_Time = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
_Id = Annotated[int, msgspec.Meta(ge=0)]


class SectionTimes(msgspec.Struct, frozen=True, array_like=True):
    """Times of one section's stamps, in ns after the first stamp of the payload.

    The host records a stamp in a stream, and the device completes the stamp later.
    """

    span: _Id
    entry: _Id
    is_same_stream: bool
    """Whether the section's stamps are in the stream of the first section's stamps."""
    host_begin: _Time
    """Time at which the host recorded the start stamp, host clock."""
    host_end: _Time
    begin: _Time
    """Time at which the device completed the start stamp, device clock."""
    end: _Time


class DeviceTimes(msgspec.Struct, frozen=True, array_like=True):
    """Device times of sections with the same root, stored under key ``d`` of a payload."""

    root: _Id
    """Span id of the root of the sections' trace."""
    device: _Id
    is_step: bool
    """Whether the first section is the step itself."""
    is_mixed: bool
    """Whether a validation or a checkpoint inside the step is excluded from the step's time."""
    host_ns: _Time
    """Time at which the host recorded the first stamp, monotonic ns."""
    device_ns: _Time
    """Time at which the device completed the first stamp, device clock in ns."""
    low: _Time
    """Lower bound of host clock minus device clock in ns, derived from these stamps."""
    high: _Time
    """Upper bound of host clock minus device clock in ns."""
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
    """Data of a section that does not fit into its row."""

    a: _Attributes
    """Attributes."""
    e: list[str]
    """Type, message and location of an exception."""
    l: list[_Link]  # noqa: E741 - as it is written
    """Links to other spans: high and low half of the trace id, span id, flags, attributes."""
    s: tuple[int, str]
    """Status code and description set through the OpenTelemetry API."""
    v: list[_Event]
    """Events added through the OpenTelemetry API: monotonic time in ns, name, attributes."""
    w: _Size
    """Number of events dropped because of the limit of events."""
    r: bool
    """Whether the parent span belongs to another process."""
    n: _Value
    """Number of samples of a step."""
    t: _Value
    """Number of tokens of a step."""
    m: _Value
    """Number of elements in the batches of a step."""
    f: _Value
    """Number of floating point operations of a step."""
    x: _Size
    """Time in ns inside the section that is excluded from its duration."""
    u: list[_Used | None]
    """Resource use of the section: one number for each of ``names.MEASURES``."""
    g: list[list[_Size]]
    """Shares of aggregated sections in a step (see ``layout``)."""
    c: str
    """Tracestate of a trace that a remote caller started."""
    d: DeviceTimes
    """Device times of sections. Such a payload belongs to no row."""


_payload: Final = msgspec.msgpack.Decoder(Payload).decode


def parse_payload(text: bytes) -> Any:
    """Decode a payload (see ``Payload``).

    Raises:
        ValueError: the payload is invalid.
    """
    try:
        return _payload(text)
    except RecursionError as error:
        raise ValueError("too deeply nested lists") from error


def parse_entry(text: bytes) -> list[Any]:
    """Decode an entry (see ``journal.layout``); return its items, of which the first is the kind.

    Raises:
        ValueError: the entry is invalid.
    """
    try:
        entry = msgspec.msgpack.decode(text, type=list[Any])
    except RecursionError as error:
        raise ValueError("too deeply nested lists") from error
    kind = tuple(entry[: 2 if entry[:1] == ["cell"] else 1])
    shape = None
    with contextlib.suppress(TypeError):  # unhashable: not a string
        shape = _SHAPES.get(kind)
    if shape is None:
        raise ValueError("the entry has an unknown kind")
    msgspec.convert(entry, shape)
    return entry
