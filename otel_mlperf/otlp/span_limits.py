"""Limits of spans that OpenTelemetry's standard variables set: counts and lengths.

A limit applies where it is below the fixed bound of the recorder. The SDK of Python drops the
oldest attributes, events and links, and so does this module. Dropped items are counted.
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
_MOST_ATTRIBUTES: Final = 64
_VARIABLES: Final[dict[str, tuple[str, str, float]]] = {
    "attributes": ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", _ATTRIBUTES, _MOST_ATTRIBUTES),
    "length": ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", _LENGTH, 4096),
    "events": ("OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_EVENT_COUNT_LIMIT", 8),
    "links": ("OTEL_SPAN_LINK_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT", float("inf")),
    "event_attributes": ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", _ATTRIBUTES, 16),
    "link_attributes": ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", _ATTRIBUTES, _MOST_ATTRIBUTES),
    "inner_length": (_LENGTH, _LENGTH, 4096),
}
"""By field of ``SpanLimits``: its variable, the general one, and the recorder's own bound."""
_BOUNDS: Final = (
    "otel_mlperf limits spans to 64 attributes of 4,096 bytes and 8 events of 16 attributes"
)


class SpanLimits(NamedTuple):
    """Span limits in force; None: only the bounds of the recorder."""

    attributes: int | None = None
    length: int | None = None
    """Maximum number of characters of a text in the attributes of a span."""
    events: int | None = None
    links: int | None = None
    event_attributes: int | None = None
    link_attributes: int | None = None
    inner_length: int | None = None
    """Maximum number of characters of a text in the attributes of an event or link."""

    def apply(self, recorded: dict[str, Any]) -> None:
        """Apply the limits to the payload that was recorded with a span."""
        if given := recorded.get("a"):
            recorded["a"] = _limit(given, self.attributes, self.length)
        if recorded.get("e"):
            self._limit_exception(recorded)
        inner = self.inner_length
        if events := recorded.get("v"):
            # The event of an exception that left the span is its last one.
            room = None if self.events is None else max(0, self.events - bool(recorded.get("e")))
            kept = _newest(events, room)
            recorded["w"] = recorded.get("w", 0) + len(events) - len(kept)
            most = self.event_attributes
            recorded["v"] = [[at, name, _limit(about, most, inner)] for at, name, about in kept]
        if links := recorded.get("l"):
            kept = _newest(links, self.links)
            recorded["k"] = len(links) - len(kept)
            most = self.link_attributes
            recorded["l"] = [[*link, _limit(about, most, inner)] for *link, about in kept]

    def _limit_exception(self, recorded: dict[str, Any]) -> None:
        """Shorten the event of an exception; the status keeps type and message unchanged.

        Its type is dropped last and its stack first: the SDK does the opposite.
        """
        words, most = recorded["e"], self.event_attributes
        kept = [_cut(word, self.inner_length) for word in words[:most]]
        kept += [""] * (len(words) - len(kept))
        if (recorded.get("s") or (0,))[0] != StatusCode.OK.value:
            # It replaces a status that was set before the exception.
            recorded["s"] = [StatusCode.ERROR.value, describe_error(words)]
            if kept[:1] != words[:1] or self.events == 0:
                recorded["a"] = {names.ERROR_TYPE: words[0]} | recorded.get("a", {})
        recorded["e"] = kept
        if self.events == 0:
            del recorded["e"]
            recorded["w"] = recorded.get("w", 0) + 1


NO_LIMITS: Final = SpanLimits()


def describe_error(words: Sequence[str]) -> str:
    """Return the status of a span that an exception left, as the SDK describes it.

    Args:
        words: type and message of the exception.
    """
    kind, message, *_ = (*words, "", "")
    return f"{kind.rpartition('.')[2]}: {message}" if kind else message


def read_span_limits(environ: Mapping[str, str]) -> tuple[SpanLimits, list[str]]:
    """Return the limits that the standard variables set, and warnings about them."""
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
        # A general limit applies to everything that it bounds, whichever of its bounds is lower.
        elif variable == own or bound == _MOST_ATTRIBUTES:
            beyond.append(variable)
    if beyond:
        warnings.append(f"{', '.join(dict.fromkeys(beyond))}: {_BOUNDS}")
    return SpanLimits(**limits), warnings


def _limit(attributes: Mapping[str, Any], most: int | None, length: int | None) -> dict[str, Any]:
    """Return the newest attributes with truncated texts, and the number of dropped ones."""
    kept = dict(_newest([*attributes.items()], most))
    dropped = len(attributes) - len(kept)
    kept = {key: _cut(value, length) for key, value in kept.items()}
    return kept | {names.DROPPED_ATTRIBUTES: dropped} if dropped else kept


def _newest(items: list[Any], most: int | None) -> list[Any]:
    return items if most is None else items[max(0, len(items) - most) :]


def _cut(value: Any, length: int | None) -> Any:
    if isinstance(value, str):
        return value[:length]
    return [_cut(item, length) for item in value] if isinstance(value, list) else value
