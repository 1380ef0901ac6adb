"""Valid shapes of a journal's entries and payloads; anything else was overwritten.

Readers of a journal rely on these shapes. One stray store of the program into its own memory must
damage only what it hit.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Final, TypedDict

import msgspec

from otel_mlperf.journal.device_times import DeviceTimes  # noqa: TC001 - msgspec reads it

_Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Used = Annotated[int, msgspec.Meta(ge=-(1 << 56), le=1 << 56)]
_Id = Annotated[int, msgspec.Meta(ge=0)]
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
        raise ValueError("lists in lists without end") from error


def parse_entry(text: bytes) -> list[Any]:
    """Decode an entry (see ``journal.layout``).

    Raises:
        ValueError: it is no valid entry.
    """
    try:
        entry = msgspec.msgpack.decode(text, type=list[Any])
    except RecursionError as error:
        raise ValueError("lists in lists without end") from error
    kind = tuple(entry[: 2 if entry[:1] == ["cell"] else 1])
    shape = None
    with contextlib.suppress(TypeError):  # not hashable, so no text
        shape = _SHAPES.get(kind)
    if shape is None:
        raise ValueError("an entry of no kind")
    msgspec.convert(entry, shape)
    return entry
