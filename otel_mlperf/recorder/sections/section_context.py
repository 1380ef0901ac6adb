"""How do other OpenTelemetry instrumentations see an open section?

A section object is put into opentelemetry-api's own ContextVar and answers like a ``Context``, so
that nothing has to be built for the common case in which nobody asks. ``get_current_span()`` makes
a ``SectionSpan`` on demand; what is set on it lands in the section.
"""

from __future__ import annotations

import contextvars
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation import _SPAN_KEY

from otel_mlperf import names
from otel_mlperf.recorder.core.attribute_values import (
    MOST,
    NAME_BYTES,
    safe_attributes,
    safe_name_text,
)
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.scrub import (
    MESSAGE_BYTES,
    STACK_BYTES,
    clean,
    describe_exception,
    redact,
)

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

    from otel_mlperf.recorder.core.recorder import Recorder

SECTION_KEY = otel_context.create_key("otel_mlperf-section")
"""Where contexts derived from a section's remember it."""


def _find_variable() -> ContextVar[Any]:
    # Private, but it is what makes a section visible at the price of one set: attach() and detach()
    # cost 0.8 µs more. A replaced runtime context (OTEL_PYTHON_CONTEXT) leaves us one of our own.
    found = getattr(otel_context._RUNTIME_CONTEXT, "_current_context", None)
    if isinstance(found, ContextVar):
        return found
    return ContextVar("otel_mlperf", default=Context())  # noqa: B039 - a Context is immutable


CURRENT = _find_variable()
_NOTHING: Context = contextvars.Context().run(CURRENT.get)


class Extra:
    """What only some sections have; its presence sends the exit down the long way."""

    # Defaults of the class, not set one by one: most sections that have one have attributes only.
    attributes: dict[str, Any] | None = None
    error: list[str] | None = None
    links: list[list[int]] | None = None
    span: SectionSpan | None = None
    again: list[Any] | None = None
    """Sections made by entering this one while it was open."""
    step: Any = None
    """The step that it interrupts."""
    latest: list[Any] | None = None
    """Of a marked step that has ended: see ``Step.latest``."""


class Attributes(Extra):
    """Nothing but attributes: the exit knows what to do without looking further."""


class SectionContext:
    """A section as an OpenTelemetry context; the recording half is in ``section``.

    ``at`` is the byte offset of its entry in the open table, 0 while it is not open.
    """

    __slots__ = ("at", "chunk", "entry", "extra", "inner", "sid", "t0", "token", "track")

    recorder: Recorder
    """Of the class: each journal has a section class of its own."""
    at: int
    chunk: bytes
    entry: int
    extra: Extra | None
    inner: bytes | None
    sid: int
    t0: int
    token: Token[Any]
    track: int

    def set(self, /, **attributes: Any) -> None:
        """Records attributes of this section; later values win."""
        # As in set_safely(), which would cost one more call.
        try:
            set_attributes(self, attributes)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    # -- the protocol of opentelemetry.context.Context ------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the context; the current span is made when it is asked for."""
        if key == _SPAN_KEY:
            return span_of(self)
        if key == SECTION_KEY:
            return self
        return context_below(self).get(key, default)

    def copy(self) -> dict[str, Any]:
        """The whole context as a plain dictionary."""
        found = dict(context_below(self))
        found[_SPAN_KEY] = span_of(self)
        found[SECTION_KEY] = self
        return found

    def __getitem__(self, key: str) -> Any:
        return self.copy()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.copy())

    def __bool__(self) -> bool:
        return True

    def keys(self) -> KeysView[str]:
        """Keys of the context."""
        return self.copy().keys()

    def values(self) -> ValuesView[Any]:
        """Values of the context."""
        return self.copy().values()

    def items(self) -> ItemsView[str, Any]:
        """Keys and values of the context."""
        return self.copy().items()


def context_above(section: SectionContext) -> Any:
    """What was current when the section became so; None at the beginning of a context."""
    # A signal handler may look before the token is stored.
    token = getattr(section, "token", None)
    if token is None or token.old_value is Token.MISSING:
        return None
    return token.old_value


def context_below(section: SectionContext) -> Mapping[str, Any]:
    """The innermost context around the section that is not a section itself."""
    found: Any = section
    while isinstance(found, SectionContext):
        found = context_above(found)
    return _NOTHING if found is None else found


def surface() -> None:
    """Makes the nearest context current that is not a section: those around have all ended."""
    current = CURRENT.get()
    if isinstance(current, SectionContext) and not current.at:
        CURRENT.set(context_below(current))


def extra_of(section: SectionContext) -> Extra:
    """The section's ``Extra``, made if there is none."""
    extra = section.extra
    if extra is None or extra.__class__ is Attributes:
        section.extra = Extra()
        if extra is not None:
            section.extra.attributes = extra.attributes
        return section.extra
    return extra


def set_attributes(section: SectionContext, attributes: Mapping[Any, Any]) -> None:
    """Adds attributes to an open section, made safe at once: values may change later."""
    if section.sid > 0 and not section.at:
        return
    extra = section.extra
    if extra is None:
        extra = section.extra = Attributes()
    if extra.attributes is None:
        extra.attributes = {}
    extra.attributes.update(safe_attributes(attributes))
    while len(extra.attributes) > MOST:
        extra.attributes.popitem()


def set_safely(section: SectionContext, attributes: Mapping[Any, Any]) -> None:
    """The same, whatever they are; never raises."""
    try:
        set_attributes(section, attributes)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)


def span_of(section: SectionContext) -> Span:
    """The section as a span of the OpenTelemetry API; the same object as long as it is open."""
    try:
        extra = extra_of(section) if section.at else section.extra or Extra()
        if extra.span is None:
            recorder = section.recorder
            trace_id, sampled = recorder.places.trace_of(section)
            flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
            extra.span = SectionSpan(section, SpanContext(trace_id, section.sid, False, flags))
        return extra.span
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return INVALID_SPAN


class SectionSpan(Span):
    """A section as others see it; what they set on it is recorded with the section."""

    __slots__ = ("_context", "section")

    def __init__(self, section: SectionContext, context: SpanContext) -> None:
        self.section = section
        self._context = context

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
                self.section.recorder.rename(self.section, safe_name_text(name))
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
            with_text = self.section.recorder.config.exception_text
            self._set_error(describe_exception(exception, with_text=with_text))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def end(self, end_time: int | None = None) -> None:
        """Nothing: the ``with`` block or function that opened the section ends it."""

    def _fail(self, kind: str, message: str, stack: str = "") -> None:
        """Marks the section failed in the words of others, as far as text may be recorded."""
        if not self.section.recorder.config.exception_text:
            message = stack = ""
        words = ((kind, NAME_BYTES), (message, MESSAGE_BYTES), (stack, STACK_BYTES))
        # More than the limit is read, so that a secret at the cut is recognised.
        self._set_error([clean(redact(clean(word, 2 * most)), most) for word, most in words])

    def _set_error(self, words: list[str]) -> None:
        if self.section.at:
            extra = extra_of(self.section)
            if extra.error is None or extra.error[0] == "error":
                extra.error = words


_EXCEPTION_FIELDS = (
    names.EXCEPTION_TYPE,
    names.EXCEPTION_MESSAGE,
    names.EXCEPTION_STACKTRACE,
)
