"""OpenTelemetry API span of an open section.

``get_current_span()`` creates a ``SectionSpan`` on demand. Attributes, events, links and status
that other libraries set on it are recorded with the section, by the rules of the specification.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
)

from otel_mlperf import names
from otel_mlperf.recorder.core.attribute_values import safe_attributes, safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.core.scrub import (
    MESSAGE_BYTES,
    STACK_BYTES,
    clean,
    describe_exception,
)
from otel_mlperf.recorder.sections.section_context import (
    Extra,
    SectionContext,
    TraceContext,
    extra_of,
    set_safely,
)
from otel_mlperf.redaction import IN_PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mlperf.recorder.core.recording import Recording

MAX_EVENTS: Final = 8
"""Maximum number of events of a section: the journal's size is fixed."""
_MOST_EVENT_ATTRIBUTES: Final = 16
_REMOTE: Final = 0x200
"""Bit of a link's flags in OTLP: the linked span is of another process."""
_EXCEPTION_TEXTS: Final = {
    names.EXCEPTION_MESSAGE: MESSAGE_BYTES,
    names.EXCEPTION_STACKTRACE: STACK_BYTES,
}
"""Event attributes with text of an exception, and their maximum sizes in bytes."""


def span_of(section: SectionContext, trace_of: Callable[[SectionContext], TraceContext]) -> Span:
    """Return the section's OpenTelemetry span; the same object while the section is open."""
    try:
        extra = extra_of(section) if section.at else section.extra or Extra()
        if extra.span is None:
            trace_id, flags, state = trace_of(section)
            own = SpanContext(trace_id, section.sid, False, TraceFlags(flags), state)
            extra.span = SectionSpan(section, own)
        return extra.span
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return INVALID_SPAN


def monotonic_time(recording: Recording, unix_ns: Any, now: int) -> int:
    """Convert a Unix time in ns that a library gave to monotonic time.

    Args:
        recording: the recording, which contains the offset of the two clocks.
        unix_ns: the time; if it is invalid, a warning is logged and ``now`` is returned.
        now: current monotonic time; the result is between the start of the run and ``now``.
    """
    if not isinstance(unix_ns, int | float) or unix_ns != unix_ns:  # noqa: PLR0124 - nan
        warn_once(f"the time of a span is a {type(unix_ns).__name__}, expected nanoseconds")
        return now
    meta = recording.meta
    return int(max(meta.monotonic_ns, min(now, unix_ns - meta.shift_ns)))


def _rename(section: SectionContext, name: str) -> None:
    registry = section.recording.registry
    _, category = registry.about(section.entry)
    section.entry = registry.entry((name, category), name, category)


class SectionSpan(Span):
    """Span of a section, for libraries that use the OpenTelemetry API."""

    __slots__ = ("_context", "section")

    def __init__(self, section: SectionContext, context: SpanContext) -> None:
        self.section = section
        self._context = context

    def __eq__(self, other: object) -> bool:
        """Return whether both spans are of one section, which can have several span objects."""
        return isinstance(other, SectionSpan) and other.section is self.section

    def __hash__(self) -> int:
        return id(self.section)

    def get_span_context(self) -> SpanContext:
        """Return the trace id and span id with which the section is exported."""
        return self._context

    def is_recording(self) -> bool:
        """Return whether the section is open."""
        return self.section.at != 0

    def set_attribute(self, key: str, value: Any) -> None:
        """Record an attribute of the section."""
        set_safely(self.section, {key: value})

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Record attributes of the section."""
        set_safely(self.section, attributes)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        """Record an event, by default of now; events after the first eight are only counted."""
        try:
            if self.section.at:
                _add_event(self.section, safe_name_text(name), attributes, timestamp)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        """Record a link to another span."""
        try:
            if self.section.at and context.is_valid:
                extra = extra_of(self.section)
                high, low = context.trace_id >> 64, context.trace_id & (1 << 64) - 1
                flags = context.trace_flags | (_REMOTE if context.is_remote else 0)
                link = [high, low, context.span_id, flags, safe_attributes(attributes or {})]
                extra.links = [*(extra.links or []), link]
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def update_name(self, name: str) -> None:
        """Rename an open section; its category stays unchanged."""
        try:
            if self.section.at:
                _rename(self.section, safe_name_text(name))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status, as the API specifies: ERROR marks the section as failed, OK is final."""
        if isinstance(status, Status):
            code, text = status.status_code, status.description
        else:
            code, text = status, description
        try:
            if self.section.at and code is not StatusCode.UNSET:
                _set_status(self.section, code, text)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Any = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Record an event with an exception's type, message and stack.

        It does not mark the section as failed, because the program may have handled the exception;
        ``set_status`` does.
        """
        try:
            if self.section.at:
                with_text = self.section.recording.config.exception_text
                words = describe_exception(exception, with_text=with_text)
                told = dict(zip(names.EXCEPTION, words, strict=True)) | dict(attributes or {})
                _add_event(self.section, "exception", told, timestamp)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def end(self, end_time: int | None = None) -> None:
        """Do nothing, because the block or function that opened the section ends it."""


def _set_status(section: SectionContext, code: StatusCode, description: Any) -> None:
    extra = extra_of(section)
    if extra.status is not None and extra.status[0] == StatusCode.OK.value:
        return
    text = ""
    if code is StatusCode.ERROR and section.recording.config.exception_text:
        text = _scrub(str(description or ""), MESSAGE_BYTES)
    extra.status = [code.value, text]


def _add_event(section: SectionContext, name: str, attributes: Any, timestamp: int | None) -> None:
    extra = extra_of(section)
    extra.events = extra.events or []
    if len(extra.events) >= MAX_EVENTS:
        extra.dropped_events += 1
        return
    now = time.monotonic_ns()
    when = now if timestamp is None else monotonic_time(section.recording, timestamp, now)
    with_text = section.recording.config.exception_text
    extra.events.append([when, name, _event_attributes(attributes or {}, with_text)])


def _event_attributes(given: Mapping[Any, Any], with_text: bool) -> dict[str, Any]:
    """Return an event's attributes; exception text is redacted, and dropped if disallowed."""
    first = dict(islice(given.items(), _MOST_EVENT_ATTRIBUTES))
    texts = {key: str(first.pop(key) or "") for key in _EXCEPTION_TEXTS if key in first}
    attributes = safe_attributes(first)
    if with_text:
        found = {key: _scrub(text, _EXCEPTION_TEXTS[key]) for key, text in texts.items()}
        attributes |= {key: text for key, text in found.items() if text}
    return attributes


def _scrub(text: str, most_bytes: int) -> str:
    # Redact a text longer than the limit: otherwise a secret cut at the limit would not be
    # recognised.
    return clean(IN_PROCESS.text(clean(text, 2 * most_bytes)), most_bytes)
