"""How do other OpenTelemetry instrumentations see an open section, and what may they set on it?

``get_current_span()`` makes a ``SectionSpan`` on demand; what is set on it lands in the section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
)

from otel_mlperf import names
from otel_mlperf.recorder.core.attribute_values import NAME_BYTES, safe_name_text
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.scrub import (
    MESSAGE_BYTES,
    STACK_BYTES,
    clean,
    describe_exception,
)
from otel_mlperf.recorder.sections.section_context import (
    Extra,
    SectionContext,
    extra_of,
    set_safely,
)
from otel_mlperf.redaction import IN_PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_EXCEPTION_FIELDS = (
    names.EXCEPTION_TYPE,
    names.EXCEPTION_MESSAGE,
    names.EXCEPTION_STACKTRACE,
)


def span_of(
    section: SectionContext, trace_of: Callable[[SectionContext], tuple[int, bool]]
) -> Span:
    """The section as a span of the OpenTelemetry API; the same object as long as it is open."""
    try:
        extra = extra_of(section) if section.at else section.extra or Extra()
        if extra.span is None:
            trace_id, sampled = trace_of(section)
            flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
            extra.span = SectionSpan(section, SpanContext(trace_id, section.sid, False, flags))
        return extra.span
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return INVALID_SPAN


def _rename(section: SectionContext, name: str) -> None:
    registry = section.recording.registry
    _, category = registry.about(section.entry)
    section.entry = registry.entry((name, category), name, category)


class SectionSpan(Span):
    """A section as others see it; what they set on it is recorded with the section."""

    __slots__ = ("_context", "section")

    def __init__(self, section: SectionContext, context: SpanContext) -> None:
        self.section = section
        self._context = context

    def __eq__(self, other: object) -> bool:
        """Whether it is of the same section: the current span, asked for, is a face of its own."""
        return isinstance(other, SectionSpan) and other.section is self.section

    def __hash__(self) -> int:
        return id(self.section)

    def get_span_context(self) -> SpanContext:
        """Trace id and span id, the ones that are delivered."""
        return self._context

    def is_recording(self) -> bool:
        """Whether the section is open."""
        return self.section.at != 0

    def set_attribute(self, key: str, value: Any) -> None:
        """Records an attribute of the section."""
        set_safely(self.section, {key: value})

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Records attributes of the section."""
        set_safely(self.section, attributes)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        """Kept only for exceptions: a journal has room for sections, not for a log."""
        try:
            if name == "exception" and attributes:
                self._fail(*(str(attributes.get(key) or "") for key in _EXCEPTION_FIELDS))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        """Records a link to another span."""
        try:
            if self.section.at and context.is_valid:
                extra = extra_of(self.section)
                high, low = context.trace_id >> 64, context.trace_id & (1 << 64) - 1
                extra.links = [*(extra.links or []), [high, low, context.span_id]]
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def update_name(self, name: str) -> None:
        """Renames the section, once it is open; its category stays."""
        try:
            if self.section.at:
                _rename(self.section, safe_name_text(name))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """ERROR marks the section failed; OK takes that back."""
        if isinstance(status, Status):
            code, text = status.status_code, status.description
        else:
            code, text = status, description
        try:
            if code is StatusCode.ERROR:
                self._fail("error", str(text or ""))
            elif code is StatusCode.OK and self.section.extra is not None:
                self.section.extra.error = None
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Any = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Records an exception's type, message and stack."""
        try:
            with_text = self.section.recording.config.exception_text
            self._set_error(describe_exception(exception, with_text=with_text))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def end(self, end_time: int | None = None) -> None:
        """Nothing: the ``with`` block or function that opened the section ends it."""

    def _fail(self, kind: str, message: str, stack: str = "") -> None:
        """Marks the section failed in the words of others, as far as text may be recorded."""
        if not self.section.recording.config.exception_text:
            message = stack = ""
        words = ((kind, NAME_BYTES), (message, MESSAGE_BYTES), (stack, STACK_BYTES))
        # More than the limit is read, so that a secret at the cut is recognised.
        self._set_error(
            [clean(IN_PROCESS.text(clean(word, 2 * most)), most) for word, most in words]
        )

    def _set_error(self, words: list[str]) -> None:
        if self.section.at:
            extra = extra_of(self.section)
            if extra.error is None or extra.error[0] == "error":
                extra.error = words
