"""What does a row of a run folder's table ``spans`` say, in OTLP's terms?

Whoever writes stored spans, as protobuf or as JSON, reads rows here, so that both say the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.otlp.span_encoding import Event, Link

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXCEPTION: Final = (
    names.EXCEPTION_TYPE,
    names.EXCEPTION_MESSAGE,
    names.EXCEPTION_STACKTRACE,
)


class OwnFields(NamedTuple):
    """What one span has on top of what it shares with others of its name and thread."""

    attributes: dict[str, Any]
    events: list[Event]
    links: list[Link]
    error: str | None
    """The words of an error, maybe none; None: there was no error."""


def shared_attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that a row has in columns: category, phase and thread."""
    attributes: dict[str, Any] = {names.SECTION_CATEGORY: row["category"]}
    if row["phase"]:
        attributes[names.ML_PHASE] = row["phase"]
    if row["thread_id"] is not None:
        attributes[names.THREAD_ID] = row["thread_id"]
        if row["thread"]:
            attributes[names.THREAD_NAME] = row["thread"]
    return attributes


def own_fields(row: Mapping[str, Any]) -> OwnFields:
    """The rest of a row: the words of an exception become an event, as servers expect it."""
    attributes = json.loads(row["attributes"] or "{}")
    words = {key: attributes.pop(key) for key in _EXCEPTION if key in attributes}
    given = {key: value for key, value in words.items() if value}
    events = [Event(row["end_ns"], "exception", given)] if words else []
    links = [
        Link(bytes.fromhex(trace), int(span, 16))
        for trace, span in json.loads(row["links"] or "[]")
    ]
    error = None
    if row["status"] == "error":
        told = str(words.get(names.EXCEPTION_MESSAGE, ""))
        error = names.INTERRUPTED_WORDS if row["interrupted"] else told
    return OwnFields(attributes, events, links, error)
