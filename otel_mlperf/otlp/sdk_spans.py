"""Conversion of finished spans to spans of the OpenTelemetry SDK (``ReadableSpan``).

This module imports ``opentelemetry.sdk``, and is only used for exporters that a user configured.
All fields (kind, scope, status, events, links, flags) are the same as in spans sent by OTLP.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from otel_mlperf import names
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.span_content import own_fields, shared_attributes

if TYPE_CHECKING:
    from msgspec import Struct

    from otel_mlperf.otlp.span_content import OwnFields, Scope, SpanLink

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NO_STATE: Final = TraceState()
_REMOTE_BIT: Final = wire.REMOTE ^ wire.LOCAL
_PLAIN: Final = (str, bool, float, bytes)


def to_resource(attributes: Mapping[str, Any]) -> Resource:
    """Return a resource of the SDK, which all spans of a batch can share."""
    return Resource(sdk_attributes(attributes), names.SCHEMA_URL)


def to_readable_span(item: Struct, resource: Resource) -> ReadableSpan:
    """Return a finished span for exporters and processors of the SDK.

    Args:
        item: A ``SpanItem`` of a batch; its instrumentation scope is preserved.
        resource: Result of ``to_resource``.
    """
    row = asdict(item)
    own = own_fields(row)
    state = TraceState.from_header([own.trace_state]) if own.trace_state else _NO_STATE
    trace_id = int(row["trace_id"], 16)
    parent = None
    if row["parent_id"]:
        parent = SpanContext(
            trace_id, int(row["parent_id"], 16), own.is_parent_remote, _SAMPLED, state
        )
    return ReadableSpan(
        row["name"],
        SpanContext(trace_id, int(row["span_id"], 16), is_remote=False, trace_flags=_SAMPLED,
                    trace_state=state),
        parent,
        resource,
        sdk_attributes({**shared_attributes(row), **own.attributes}),
        _events(own),
        [_link(link) for link in own.links],
        SpanKind(own.kind - 1),  # OTLP has an additional first value, for an unspecified kind
        status=_status(own),
        start_time=row["start_ns"],
        end_time=row["end_ns"],
        instrumentation_scope=to_scope(own.scope),
    )  # fmt: skip


def to_scope(scope: Scope) -> InstrumentationScope:
    """Return the SDK's type for the instrumentation scope of a span."""
    return InstrumentationScope(*scope)


def sdk_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes with values that the SDK's exporters accept, without None values.

    A single value that protobuf does not support would make an exporter fail for the whole batch.
    """
    return {
        key: value if type(value) in _PLAIN else _value(value)
        for key, value in attributes.items()
        if key and value is not None
    }


def _value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_value, value))
    if isinstance(value, Mapping):
        if value.keys() == {names.BASE64}:
            return b64decode(value[names.BASE64])
        return json.dumps(value, default=str)
    if isinstance(value, int) and value not in wire.INT64:
        return str(value)
    return value


def _events(own: OwnFields) -> BoundedList[Event]:
    events: BoundedList[Event] = BoundedList.from_seq(
        None, [Event(event.name, sdk_attributes(event.attributes), event.time_ns)
               for event in own.events],
    )  # fmt: skip
    events.dropped = own.events_left_out
    return events


def _link(link: SpanLink) -> Link:
    is_remote = bool(link.flags & _REMOTE_BIT)
    flags = TraceFlags(link.flags & 0xFF)
    context = SpanContext(int.from_bytes(link.trace_id, "big"), link.span_id, is_remote, flags)
    return Link(context, sdk_attributes(link.attributes))


def _status(own: OwnFields) -> Status:
    if own.error is not None:
        return Status(StatusCode.ERROR, own.error or None)
    return Status(StatusCode.OK if own.is_ok else StatusCode.UNSET)
