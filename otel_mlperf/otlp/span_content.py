"""Content of a span except ids and times: the OTLP fields, and their encoding as bytes.

This module is used both for live spans and for rows of table ``spans``, so that a replay sends the
same spans as the first delivery. The fields are encoded as protobuf here, and as JSON elsewhere.

The table has no columns for rare fields of OTLP. Such fields are stored as attributes, with the
names that OpenTelemetry specifies for formats without these fields.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.span_limits import describe_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

_KINDS: Final = {"server": 2, "client": 3, "producer": 4, "consumer": 5}
MOST_MARKS: Final = 128
"""Maximum number of marks of one run, which is OpenTelemetry's default limit of events per span."""


class Scope(NamedTuple):
    """Instrumentation scope: the library that created a span."""

    name: str = names.SCOPE
    version: str = names.VERSION
    schema_url: str = names.SCHEMA_URL

    def encode(self) -> bytes:
        """Return the scope as an encoded ``InstrumentationScope``, without its schema URL."""
        return wire.encode_scope(self.name, self.version)


OWN_SCOPE: Final = Scope()


class SpanLink(NamedTuple):
    """Link from a span to another span, possibly in another trace."""

    trace_id: bytes
    span_id: int
    attributes: Mapping[str, object] = {}
    flags: int = wire.LOCAL


class SpanEvent(NamedTuple):
    """Event of a span, such as an exception."""

    time_ns: int
    name: str
    attributes: Mapping[str, object] = {}


class OwnFields(NamedTuple):
    """Fields that belong to one span only, not to all spans of the same name and thread."""

    attributes: Mapping[str, Any] = {}
    events: Sequence[SpanEvent] = ()
    links: Sequence[SpanLink] = ()
    error: str | None = None
    """Error message, possibly empty; None if the span has no error."""
    events_left_out: int = 0
    """Number of events that were dropped; likewise for links."""
    links_left_out: int = 0
    is_ok: bool = False
    """Whether the user's program set the status OK."""
    is_parent_remote: bool = False
    trace_state: str = ""
    kind: int = wire.INTERNAL
    scope: Scope = OWN_SCOPE


def shared_attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are columns of table ``spans``: category, phase and thread."""
    attributes: dict[str, Any] = {names.SECTION_CATEGORY: row["category"]}
    if row["phase"]:
        attributes[names.ML_PHASE] = row["phase"]
    if row["thread_id"] is not None:
        attributes[names.THREAD_ID] = row["thread_id"]
        if row["thread"]:
            attributes[names.THREAD_NAME] = row["thread"]
    return attributes


def exception_events(time_ns: int, words: Mapping[str, str]) -> list[SpanEvent]:
    """Return a list with the event of an exception; [] if ``words`` is empty.

    ``words`` are the exception's type, message and stack, by the names in ``names.EXCEPTION``.
    """
    given = {name: word for name, word in words.items() if word}
    return [SpanEvent(time_ns, "exception", given)] if words else []


def mark_event(time_ns: int, name: str, phase: str, number: int) -> SpanEvent:
    """Return the event of a mark that the user's program set at step ``number`` of ``phase``."""
    about: dict[str, object] = {names.TRAINING_STEP: number}
    return SpanEvent(time_ns, name, about | ({names.ML_PHASE: phase} if phase else {}))


def own_fields(row: Mapping[str, Any]) -> OwnFields:
    """Return the fields that belong to one span only; an exception becomes an event.

    ``row`` is a row of table ``spans``, or has the fields of a ``SpanItem``. The span of a run also
    has ``marks``, each with the arguments of ``mark_event``.
    """
    attributes = dict(_load(row["attributes"]) or {})
    words = {key: attributes.pop(key) for key in names.EXCEPTION if key in attributes}
    events = exception_events(row["end_ns"], words)
    events += [SpanEvent(*event) for event in _load(row.get("events")) or ()]
    events += [mark_event(*mark) for mark in row.get("marks", ())]
    links = [
        SpanLink(bytes.fromhex(trace), int(span, 16), *more)
        for trace, span, *more in _load(row["links"]) or ()
    ]
    description = attributes.pop(names.STATUS_DESCRIPTION, "")
    error = None
    if row["status"] == "error":
        of_exception = [str(words.get(key, "")) for key in names.EXCEPTION]
        message = description or (describe_error(of_exception) if words else "")
        error = names.INTERRUPTED_MESSAGE if row["interrupted"] else message
    left_out = attributes.pop(names.DROPPED_EVENTS, 0) + row.get("marks_left_out", 0)
    no_links = attributes.pop(names.DROPPED_LINKS, 0)
    is_remote = attributes.pop(names.REMOTE_PARENT, False)
    attributes.pop(names.UNSAMPLED, None)  # spans that are sent count as sampled
    kind, scope = take_kind_and_scope(attributes)
    state = attributes.pop(names.TRACE_STATE, "")
    is_ok = row["status"] == "ok"
    return OwnFields(
        attributes, events, links, error, left_out, no_links, is_ok, is_remote, state, kind, scope
    )


def group_by_scope(
    rows: Iterable[Mapping[str, Any]],
) -> dict[Scope, list[tuple[Mapping[str, Any], OwnFields]]]:
    """Group rows of table ``spans`` by instrumentation scope, each with its ``OwnFields``."""
    groups: dict[Scope, list[tuple[Mapping[str, Any], OwnFields]]] = {}
    for row in rows:
        own = own_fields(row)
        groups.setdefault(own.scope, []).append((row, own))
    return groups


def _load(value: Any) -> Any:
    """Return a decoded value of a row: tables contain JSON text, live spans the value itself."""
    return json.loads(value) if value and isinstance(value, str) else value


def take_kind_and_scope(attributes: dict[str, Any]) -> tuple[int, Scope]:
    """Remove the attributes that stand for a span's kind and scope, and return both."""
    kind = _KINDS.get(str(attributes.pop(names.SPAN_KIND, "")), wire.INTERNAL)
    given = [str(attributes.pop(name, "")) for name in names.SCOPE_FIELDS]
    return kind, Scope(*given) if given[0] else OWN_SCOPE


def span_tail(name: str, attributes: Mapping[str, object] = {}, kind: int = wire.INTERNAL) -> bytes:
    """Encode a span's name, kind and constant attributes, which many spans may share."""
    # The head already contains a kind: of repeated fields, protobuf uses the last.
    kind_field = b"" if kind == wire.INTERNAL else wire.number(6, kind)
    return wire.text(5, name) + kind_field + wire.encode_attributes(attributes)


def span_extra(own: OwnFields) -> bytes:
    """Encode the fields of one span that are not in the tail; most spans have none (``b""``)."""
    parts = [wire.text(3, own.trace_state), _attributes(own.attributes, 9, 10)]
    parts += [wire.block(11, _event(event)) for event in own.events]
    if own.events_left_out:
        parts.append(wire.number(12, own.events_left_out))
    parts += [wire.block(13, _link(link)) for link in own.links]
    if own.links_left_out:
        parts.append(wire.number(14, own.links_left_out))
    if own.error is not None:
        parts.append(wire.block(15, wire.text(2, own.error) + wire.number(3, wire.STATUS_ERROR)))
    elif own.is_ok:
        parts.append(wire.block(15, wire.number(3, wire.STATUS_OK)))
    if own.is_parent_remote:
        parts.append(wire.fixed32(16, wire.REMOTE))
    return b"".join(parts)


def link_blocks(trace_id: NDArray[np.uint8], span_id: NDArray[np.uint64]) -> list[bytes]:
    """Encode one link without attributes for each span, in the format of ``span_extra``.

    The arrays have one row per span: the linked span's trace id (16 bytes), and its span id.
    """
    # One link is encoded and copied, then the ids are replaced in all copies. The placeholder ids
    # (bytes 0 to 15, and 16 to 23) do not occur elsewhere in the encoded link.
    template = wire.block(13, _link(SpanLink(bytes(range(16)), 0x1011121314151617)))
    rows = np.tile(np.frombuffer(template, np.uint8), (len(span_id), 1))
    trace, span = template.index(bytes(range(16))), template.index(bytes(range(16, 24)))
    rows[:, trace : trace + 16] = trace_id
    rows[:, span : span + 8] = span_id.astype(">u8").view(np.uint8).reshape(-1, 8)
    joined, size = rows.tobytes(), len(template)
    return [joined[at : at + size] for at in range(0, len(joined), size)]


def _event(event: SpanEvent) -> bytes:
    when = wire.fixed64(1, event.time_ns)
    return when + wire.text(2, event.name) + _attributes(event.attributes, 3, 4)


def _link(link: SpanLink) -> bytes:
    ids = wire.block(1, link.trace_id) + wire.block(2, link.span_id.to_bytes(8, "big"))
    return ids + _attributes(link.attributes, 4, 5) + wire.fixed32(6, link.flags)


def _attributes(attributes: Mapping[str, object], field: int, dropped_field: int) -> bytes:
    given, dropped = split_dropped(attributes)
    count = wire.number(dropped_field, dropped) if dropped else b""
    return wire.encode_attributes(given, field) + count


def split_dropped(attributes: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """Return the attributes except ``names.DROPPED_ATTRIBUTES``, and the dropped count or 0."""
    if names.DROPPED_ATTRIBUTES not in attributes:
        return attributes, 0
    rest = dict(attributes)
    return rest, int(rest.pop(names.DROPPED_ATTRIBUTES))
