"""Encoding of spans as lines of OTLP/JSON, in the format of the Collector's file exporter.

Each line is one ``ExportTraceServiceRequest``. Ids are hexadecimal, and 64-bit integers are text.
The Collector's ``otlpjsonfile`` receiver and other tools can read these lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf import names
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.span_content import group_by_scope, shared_attributes, split_dropped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from otel_mlperf.otlp.span_content import OwnFields, Scope, SpanEvent, SpanLink

LINE_BYTES: Final = 1 << 20
"""Maximum length of a line that the Collector reads in its default configuration."""
_DEEPEST: Final = 16
_Json = dict[str, Any]


def encode_lines(
    resource: Mapping[str, object], rows: Iterable[Mapping[str, Any]]
) -> Iterator[bytes]:
    """Yield lines (with line feeds) that contain the spans of one resource.

    ``resource`` are the resource's attributes; ``rows`` have the columns of table ``spans``. A line
    has at most ``LINE_BYTES``, unless a single span needs more.
    """
    for scope, spans in group_by_scope(rows).items():
        yield from _lines(_envelope(resource, scope), starmap(_span, spans))


def _lines(envelope: tuple[bytes, bytes], found: Iterable[_Json]) -> Iterator[bytes]:
    before, after = envelope
    room = LINE_BYTES - len(before) - len(after)
    spans: list[bytes] = []
    used = 0
    for fields in found:
        span = _without_controls(msgspec.json.encode(fields))
        used += len(span) + 1
        if used > room and spans:
            yield before + b",".join(spans) + after
            spans, used = [], len(span) + 1
        spans.append(span)
    if spans:
        yield before + b",".join(spans) + after


def _without_controls(encoded: bytes) -> bytes:
    """Escape characters that control a terminal or change the text direction.

    A JSON parser restores the characters.
    """
    text = encoded.decode()
    if text.isprintable():
        return encoded
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).encode()


def _envelope(resource: Mapping[str, object], scope: Scope) -> tuple[bytes, bytes]:
    empty: list[_Json] = []
    line = {
        "resourceSpans": [
            {
                "schemaUrl": names.SCHEMA_URL,
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {
                        "schemaUrl": scope.schema_url,
                        "scope": {"name": scope.name, "version": scope.version},
                        "spans": empty,
                    }
                ],
            }
        ]
    }
    # Encoded once without spans, and split where the spans belong: they are the last field.
    encoded = _without_controls(msgspec.json.encode(line))
    end = len(b"]}]}]}")
    return encoded[:-end], encoded[-end:] + b"\n"


def _span(row: Mapping[str, Any], own: OwnFields) -> _Json:
    span: _Json = {
        "traceId": row["trace_id"],
        "spanId": row["span_id"],
        "parentSpanId": row["parent_id"] or "",
        "flags": wire.REMOTE if own.is_parent_remote else wire.LOCAL,
        "name": _text(row["name"]),
        "kind": own.kind,
        "startTimeUnixNano": str(row["start_ns"]),
        "endTimeUnixNano": str(row["end_ns"]),
        **_with_dropped({**shared_attributes(row), **own.attributes}),
    }
    if own.error is not None:
        span["status"] = {"message": _text(own.error), "code": wire.STATUS_ERROR}
    elif own.is_ok:
        span["status"] = {"code": wire.STATUS_OK}
    if own.trace_state:
        span["traceState"] = own.trace_state
    if own.events:
        span["events"] = [_event(event) for event in own.events]
    if own.events_left_out:
        span["droppedEventsCount"] = own.events_left_out
    if own.links:
        span["links"] = [_link(link) for link in own.links]
    if own.links_left_out:
        span["droppedLinksCount"] = own.links_left_out
    return span


def _event(event: SpanEvent) -> _Json:
    return {
        "timeUnixNano": str(event.time_ns),
        "name": _text(event.name),
        **_with_dropped(event.attributes),
    }


def _link(link: SpanLink) -> _Json:
    return {
        "traceId": link.trace_id.hex(),
        "spanId": f"{link.span_id:016x}",
        **_with_dropped(link.attributes),
        "flags": link.flags,
    }


def _with_dropped(attributes: Mapping[str, object]) -> _Json:
    given, dropped = split_dropped(attributes)
    count = {"droppedAttributesCount": dropped} if dropped else {}
    return {"attributes": _attributes(given)} | count


def _attributes(attributes: Mapping[str, object], depth: int = 0) -> list[_Json]:
    return [
        {"key": _text(str(key)), "value": _value(value, depth)}
        for key, value in attributes.items()
        if key
    ]


def _value(value: object, depth: int) -> _Json:
    """Encode an ``AnyValue`` as JSON, with the value types of ``wire.any_value``.

    ``depth`` is the number of enclosing lists and maps. A list or map at depth 16 becomes the name
    of its type.
    """
    for kind, encode in _SCALARS:
        if isinstance(value, kind):
            return encode(value)
    if isinstance(value, list) and depth < _DEEPEST:
        return {"arrayValue": {"values": [_value(item, depth + 1) for item in value]}}
    if isinstance(value, Mapping) and value.keys() == {names.BASE64}:
        return {"bytesValue": value[names.BASE64]}
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return {"kvlistValue": {"values": _attributes(value, depth + 1)}}
    return {"stringValue": type(value).__qualname__}


def _integer(value: int) -> _Json:
    return {"intValue" if value in wire.INT64 else "stringValue": str(value)}


def _double(value: float) -> _Json:
    if math.isfinite(value):
        return {"doubleValue": value}
    return {"doubleValue": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


def _text(value: str) -> str:
    """Return the text with lone surrogates replaced, which JSON cannot represent."""
    return value if value.isascii() else wire.utf8(value).decode()


_SCALARS: Final[tuple[tuple[type, Callable[[Any], _Json]], ...]] = (
    (str, lambda value: {"stringValue": _text(value)}),
    (bool, lambda value: {"boolValue": value}),  # must precede int: bool is a subclass of int
    (int, _integer),
    (float, _double),
    (type(None), lambda _: {}),
)
