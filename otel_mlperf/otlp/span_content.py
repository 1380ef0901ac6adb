"""What does a span say beside its ids and times, in OTLP's terms and as bytes?

Live spans and rows of the run folder's table ``spans``, written as protobuf or as JSON: all of them
come by here, so that a replay says what was sent the first time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.otlp import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

_ERROR: Final = 2
"""The status code of a span that failed."""
_LINK_FLAGS: Final = 0x101
MOST_MARKS: Final = 128
"""Told of one run: as many events as a span may have where OpenTelemetry's own limits hold."""

EXCEPTION: Final = (
    names.EXCEPTION_TYPE,
    names.EXCEPTION_MESSAGE,
    names.EXCEPTION_STACKTRACE,
)


class SpanLink(NamedTuple):
    """A reference to a span elsewhere."""

    trace_id: bytes
    span_id: int
    attributes: Mapping[str, object] = {}


class SpanEvent(NamedTuple):
    """Something that happened in a span, such as an exception."""

    time_ns: int
    name: str
    attributes: Mapping[str, object] = {}


class OwnFields(NamedTuple):
    """What one span has on top of what it shares with others of its name and thread."""

    attributes: dict[str, Any]
    events: list[SpanEvent]
    links: list[SpanLink]
    error: str | None
    """The words of an error, maybe none; None: there was no error."""
    events_left_out: int
    """How many there were beside ``events``."""


def shared_attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that a row of table ``spans`` has in columns: category, phase and thread."""
    attributes: dict[str, Any] = {names.SECTION_CATEGORY: row["category"]}
    if row["phase"]:
        attributes[names.ML_PHASE] = row["phase"]
    if row["thread_id"] is not None:
        attributes[names.THREAD_ID] = row["thread_id"]
        if row["thread"]:
            attributes[names.THREAD_NAME] = row["thread"]
    return attributes


def exception_events(time_ns: int, words: Mapping[str, str]) -> list[SpanEvent]:
    """What tells of an exception, by the names in ``EXCEPTION``; none where there are no words."""
    given = {name: word for name, word in words.items() if word}
    return [SpanEvent(time_ns, "exception", given)] if words else []


def mark_event(time_ns: int, name: str, phase: str, number: int) -> SpanEvent:
    """What tells of a point that the program marked in its run, at the step of that number."""
    about: dict[str, object] = {names.TRAINING_STEP: number}
    return SpanEvent(time_ns, name, about | ({names.ML_PHASE: phase} if phase else {}))


def own_fields(row: Mapping[str, Any]) -> OwnFields:
    """The rest of a row: the words of an exception become an event, as servers expect it.

    That of a run has ``marks`` besides, each the arguments of ``mark_event``.
    """
    attributes = json.loads(row["attributes"] or "{}")
    words = {key: attributes.pop(key) for key in EXCEPTION if key in attributes}
    events = exception_events(row["end_ns"], words)
    events += [mark_event(*mark) for mark in row.get("marks", ())]
    links = [
        SpanLink(bytes.fromhex(trace), int(span, 16))
        for trace, span in json.loads(row["links"] or "[]")
    ]
    error = None
    if row["status"] == "error":
        told = str(words.get(names.EXCEPTION_MESSAGE, ""))
        error = names.INTERRUPTED_WORDS if row["interrupted"] else told
    return OwnFields(attributes, events, links, error, row.get("marks_left_out", 0))


def span_tail(name: str, attributes: Mapping[str, object] = {}) -> bytes:
    """Name and constant attributes, ready to be shared by any number of spans."""
    return wire.text(5, name) + wire.encode_attributes(attributes)


def span_extra(
    attributes: Mapping[str, object] = {},
    links: Iterable[SpanLink] = (),
    events: Iterable[SpanEvent] = (),
    error: str | None = None,
    events_left_out: int = 0,
) -> bytes:
    """What one span has on top of its tail; ``error`` (``""``: without words) sets the status."""
    parts = [wire.encode_attributes(attributes)]
    parts += [wire.block(11, _event(event)) for event in events]
    if events_left_out:
        parts.append(wire.number(12, events_left_out))
    parts += [wire.block(13, _link(link)) for link in links]
    if error is not None:
        parts.append(wire.block(15, wire.text(2, error) + wire.number(3, _ERROR)))
    return b"".join(parts)


def link_blocks(trace_id: NDArray[np.uint8], span_id: NDArray[np.uint64]) -> list[bytes]:
    """For many spans what ``span_extra`` makes of one link without attributes."""
    # One link is written, and its ids are replaced in each copy: nowhere else in it stand the bytes
    # 0 to 15, nor 16 to 23.
    template = wire.block(13, _link(SpanLink(bytes(range(16)), 0x1011121314151617)))
    rows = np.tile(np.frombuffer(template, np.uint8), (len(span_id), 1))
    trace, span = template.index(bytes(range(16))), template.index(bytes(range(16, 24)))
    rows[:, trace : trace + 16] = trace_id
    rows[:, span : span + 8] = span_id.astype(">u8").view(np.uint8).reshape(-1, 8)
    joined, size = rows.tobytes(), len(template)
    return [joined[at : at + size] for at in range(0, len(joined), size)]


def _event(event: SpanEvent) -> bytes:
    when = wire.fixed64(1, event.time_ns)
    return when + wire.text(2, event.name) + wire.encode_attributes(event.attributes, 3)


def _link(link: SpanLink) -> bytes:
    ids = wire.block(1, link.trace_id) + wire.block(2, link.span_id.to_bytes(8, "big"))
    return ids + wire.encode_attributes(link.attributes, 4) + wire.fixed32(6, _LINK_FLAGS)
