"""Span limits from OpenTelemetry's standard variables: numbers of items, and lengths of texts.

A limit applies if it is below the fixed bound of the recorder. The oldest attributes, events and
links are dropped, and dropped items are counted, as in the Python SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.trace import StatusCode

from otel_mlperf import names
from otel_mlperf.settings.declared_config import declare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ATTRIBUTES: Final = "OTEL_ATTRIBUTE_COUNT_LIMIT"
_LENGTH: Final = "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"
_MAX_ATTRIBUTES: Final = 64
_VARIABLES: Final[dict[str, tuple[str, str, float]]] = {
    "attributes": ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", _ATTRIBUTES, _MAX_ATTRIBUTES),
    "length": ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", _LENGTH, 4096),
    "events": ("OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_EVENT_COUNT_LIMIT", 8),
    "links": ("OTEL_SPAN_LINK_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT", float("inf")),
    "event_attributes": ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", _ATTRIBUTES, 16),
    "link_attributes": ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", _ATTRIBUTES, _MAX_ATTRIBUTES),
    "inner_length": (_LENGTH, _LENGTH, 4096),
}
"""Specific variable, general variable and the recorder's bound, by field of ``SpanLimits``."""
_BOUNDS: Final = (
    "otel_mlperf limits spans to 64 attributes of 4,096 bytes and 8 events of 16 attributes"
)


class SpanLimits(NamedTuple):
    """Span limits of the user. A limit is None if only the recorder's bound applies."""

    attributes: int | None = None
    length: int | None = None
    """Maximum number of characters of a text in a span's own attributes."""
    events: int | None = None
    links: int | None = None
    event_attributes: int | None = None
    link_attributes: int | None = None
    inner_length: int | None = None
    """Maximum number of characters of a text in the attributes of an event or link."""

    def apply(self, recorded: dict[str, Any]) -> None:
        """Apply the limits in place to the payload that was recorded for a span."""
        if given := recorded.get("a"):
            recorded["a"] = _limit(given, self.attributes, self.length)
        if recorded.get("e"):
            self._limit_exception(recorded)
        inner = self.inner_length
        if events := recorded.get("v"):
            # The event of the exception that ended the span is the last event: reserve space.
            room = None if self.events is None else max(0, self.events - bool(recorded.get("e")))
            kept = _newest(events, room)
            recorded["w"] = recorded.get("w", 0) + len(events) - len(kept)
            max_count = self.event_attributes
            recorded["v"] = [
                [at, name, _limit(about, max_count, inner)] for at, name, about in kept
            ]
        if links := recorded.get("l"):
            kept = _newest(links, self.links)
            recorded["k"] = len(links) - len(kept)
            max_count = self.link_attributes
            recorded["l"] = [[*link, _limit(about, max_count, inner)] for *link, about in kept]

    def _limit_exception(self, recorded: dict[str, Any]) -> None:
        """Limit the event of an exception; the status has the full type and message.

        Unlike in the SDK, the stack is dropped first and the type last.
        """
        words, max_count = recorded["e"], self.event_attributes
        kept = [_cut(word, self.inner_length) for word in words[:max_count]]
        kept += [""] * (len(words) - len(kept))
        if (recorded.get("s") or (0,))[0] != StatusCode.OK.value:
            # The exception replaces a status that was set earlier, except OK.
            recorded["s"] = [StatusCode.ERROR.value, describe_error(words)]
            if kept[:1] != words[:1] or self.events == 0:
                recorded["a"] = {names.ERROR_TYPE: words[0]} | recorded.get("a", {})
        recorded["e"] = kept
        if self.events == 0:
            del recorded["e"]
            recorded["w"] = recorded.get("w", 0) + 1


NO_LIMITS: Final = SpanLimits()


def describe_error(words: Sequence[str]) -> str:
    """Return the status description of a span that ended with an exception, as in the SDK.

    Args:
        words: Type and message of the exception; further items are ignored.
    """
    kind, message, *_ = (*words, "", "")
    return f"{kind.rpartition('.')[2]}: {message}" if kind else message


def read_span_limits(environ: Mapping[str, str]) -> tuple[SpanLimits, list[str]]:
    """Return the span limits from the standard variables, and warnings about these variables."""
    environ, warnings = declare(environ)
    limits: dict[str, int | None] = {}
    beyond: list[str] = []
    for field, (own, general, bound) in _VARIABLES.items():
        variable = own if environ.get(own, "").strip() else general
        text = environ.get(variable, "").strip().lower()
        if text in ("", "unset"):
            continue
        if not text.isdecimal():
            warnings.append(f"{variable}={text} is not a number of at least 0 and is ignored")
        elif int(text) <= bound:
            limits[field] = int(text)
        # A general variable affects several fields with different bounds: warn only if it exceeds
        # the largest of them.
        elif variable == own or bound == _MAX_ATTRIBUTES:
            beyond.append(variable)
    if beyond:
        warnings.append(f"{', '.join(dict.fromkeys(beyond))}: {_BOUNDS}")
    return SpanLimits(**limits), warnings


def _limit(
    attributes: Mapping[str, Any], max_count: int | None, length: int | None
) -> dict[str, Any]:
    """Return the newest attributes with truncated texts, and the number of dropped ones, if any.

    ``max_count`` and ``length`` are the limits (None: no limit). The number is the attribute
    ``names.DROPPED_ATTRIBUTES``.
    """
    kept = dict(_newest([*attributes.items()], max_count))
    dropped = len(attributes) - len(kept)
    kept = {key: _cut(value, length) for key, value in kept.items()}
    return kept | {names.DROPPED_ATTRIBUTES: dropped} if dropped else kept


def _newest(items: list[Any], max_count: int | None) -> list[Any]:
    return items if max_count is None else items[max(0, len(items) - max_count) :]


def _cut(value: Any, length: int | None) -> Any:
    if isinstance(value, str):
        return value[:length]
    return [_cut(item, length) for item in value] if isinstance(value, list) else value
