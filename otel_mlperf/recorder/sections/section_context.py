"""State of an open section, which is also an OpenTelemetry context.

A section is stored in opentelemetry-api's own ContextVar and implements the interface of
``Context``. A span object is created only if code queries the current span: see ``section_span``.
"""

from __future__ import annotations

import contextvars
import struct
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace.propagation import _SPAN_KEY

from otel_mlperf.recorder.core.attribute_values import MAX_ATTRIBUTES, safe_attributes
from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

    from opentelemetry.trace import Span, TraceState

    from otel_mlperf.recorder.core.recording import Recording

PARENTS = struct.Struct("<QQQ")
"""Parent, root and track, packed as in a row and in an entry of the open table."""
SLOW = -1
"""``sid`` of a new section that must not be entered by the fast path."""
NO_ENTRY = 1 << 62
"""``at`` of an open section without an entry, because the open table is full; fails as an index."""
SECTION_KEY = otel_context.create_key("otel_mlperf-section")
"""Key of the section in contexts that other libraries derive from it."""


def _find_variable() -> ContextVar[Any]:
    # The private variable of opentelemetry-api, because attach() and detach() cost 0.8 µs more. If
    # OTEL_PYTHON_CONTEXT replaces the runtime context, the recorder uses a variable of its own.
    variable = getattr(otel_context._RUNTIME_CONTEXT, "_current_context", None)
    if isinstance(variable, ContextVar):
        return variable
    return ContextVar("otel_mlperf", default=Context())  # noqa: B039 - a Context is immutable


CURRENT = _find_variable()
NOTHING: Context = contextvars.Context().run(CURRENT.get)


class TraceContext(NamedTuple):
    """Trace data for the headers of outgoing requests."""

    trace_id: int
    flags: int
    """Flags of W3C Trace Context; bit 0: the trace is sampled here or by the caller."""
    state: TraceState | None = None
    """``tracestate`` of the caller, propagated unchanged."""


class Extra:
    """Optional data of a section; a section with an ``Extra`` exits by the slow path."""

    # Class-level defaults are cheaper than setting each: most sections have attributes only.
    attributes: dict[str, Any] | None = None
    links: list[list[Any]] | None = None
    """For each link: high and low half of the trace id, span id, flags and attributes."""
    status: list[Any] | None = None
    """Status code and description set through the OpenTelemetry API; OK is final."""
    events: list[list[Any]] | None = None
    """Monotonic time in ns, name and attributes of each event."""
    dropped_events = 0
    is_parent_remote = False
    """Whether the parent is a span of another process."""
    span: Span | None = None
    again: list[Any] | None = None
    """Open copies of this section, created by entering it repeatedly."""
    step: Any = None
    """The step that the section interrupts, if the section belongs to the run's trace."""
    within: Any = None
    """The aggregated section that directly encloses this one."""
    usage: Any = None
    """Measurement of resource usage (``Usage``); None: not measured."""
    profiled: Any = None
    """``Profiler`` of the section, also after its end; None: not profiled."""
    is_call = False
    """Whether the section is a call of a decorated function, which a line profile requires."""
    stamp: Any = None
    """Start stamp (CUDA event) of the open section."""
    flags = 0
    """Flags to add to the section's row."""
    excluded_ns = 0
    """Time in ns to exclude from the section and its step, e.g. of a checkpoint inside."""
    latest: list[Any] | None = None
    """``OpenStep.latest`` of an ended step that ``mark_step`` opened."""


class Attributes(Extra):
    """An ``Extra`` with attributes only, for which the section exits by the fast path."""


class SectionContext:
    """Section as an OpenTelemetry context; the subclasses in ``section`` record it.

    Attributes:
        at: byte offset of its entry in the open table; 0 if the section is not open.
        chunk: its parent, root and track, packed by ``PARENTS``.
        entry: number of its name in the registry.
        inner: ``chunk`` of its children on the same track; None: not packed yet.
        sid: its span id; 0 or ``SLOW`` before it is entered.
        t0: monotonic start time.
    """

    __slots__ = ("at", "chunk", "entry", "extra", "inner", "sid", "t0", "token", "track")

    recording: Recording
    """Class attribute, because each journal has its own section class."""
    adds_up: ClassVar[bool] = False
    """Whether the section is aggregated, i.e. never the parent of other sections."""
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
        """Record attributes of this section; later values replace earlier ones."""
        # Inlined code of set_safely() saves one call.
        try:
            set_attributes(self, attributes)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def as_span(self) -> Span:
        """Return the section as a span of the OpenTelemetry API."""
        raise NotImplementedError  # each journal's class has its own

    def __exit__(self, *exception: Any) -> None:
        raise NotImplementedError

    # -- the protocol of opentelemetry.context.Context ------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the context; the current span is created on demand."""
        if key == _SPAN_KEY:
            return self.as_span()
        if key == SECTION_KEY:
            return self
        return context_below(self).get(key, default)

    def copy(self) -> dict[str, Any]:
        """Return the whole context as a plain dictionary."""
        context = dict(context_below(self))
        context[_SPAN_KEY] = self.as_span()
        context[SECTION_KEY] = self
        return context

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
        """Return the keys of the context."""
        return self.copy().keys()

    def values(self) -> ValuesView[Any]:
        """Return the values of the context."""
        return self.copy().values()

    def items(self) -> ItemsView[str, Any]:
        """Return the keys and values of the context."""
        return self.copy().items()


def context_above(section: SectionContext) -> Any:
    """Return the section or context that was current before the section, or None."""
    # The token may be missing: a signal handler may run before it is stored.
    token = getattr(section, "token", None)
    if token is None or token.old_value is Token.MISSING:
        return None
    return token.old_value


def context_below(section: SectionContext) -> Mapping[str, Any]:
    """Return the innermost context around the section that is not a section itself."""
    context: Any = section
    while isinstance(context, SectionContext):
        context = context_above(context)
    return NOTHING if context is None else context


def sections_above(context: Any) -> Iterator[SectionContext]:
    """Yield the sections around a context, innermost first, also through foreign contexts."""
    while context is not None:
        if isinstance(context, SectionContext):
            yield context
            context = context_above(context)
        else:
            opened = getattr(context.get(_SPAN_KEY), "section", None)
            # A section that was opened through the OpenTelemetry API is not stored in ``CURRENT``,
            # only as the current span of a foreign context.
            if isinstance(opened, SectionContext) and getattr(opened, "token", None) is None:
                yield opened
            context = context.get(SECTION_KEY)


def aggregate_around(context: Any, track: int) -> Any:
    """Return the section directly around a context if aggregated and on ``track``, else None."""
    for section in sections_above(context):
        if section.at and not section.recording.is_retired:
            return section if section.adds_up and section.track == track else None
    return None


def surface() -> None:
    """Replace a current section that has ended with the nearest context that is no section."""
    current = CURRENT.get()
    if isinstance(current, SectionContext) and not current.at:
        CURRENT.set(context_below(current))


def inner_of(section: SectionContext) -> bytes:
    """Return the packed parent, root and track of the section's children on its track."""
    _, root, track = PARENTS.unpack(section.chunk)
    section.inner = PARENTS.pack(section.sid, root, track)
    return section.inner


def root_of(section: SectionContext) -> int:
    """Return the key of the section's trace: the span id of its root."""
    return int(PARENTS.unpack(section.chunk)[1])


def extra_of(section: SectionContext) -> Extra:
    """Return the section's ``Extra``; create one if the section has none or only ``Attributes``."""
    extra = section.extra
    if extra is None or extra.__class__ is Attributes:
        section.extra = Extra()
        if extra is not None:
            section.extra.attributes = extra.attributes
        return section.extra
    return extra


def set_attributes(section: SectionContext, attributes: Mapping[Any, Any]) -> None:
    """Add attributes to a new or open section; do nothing for an ended one.

    Values are converted immediately, because the program may modify them later.
    """
    if section.sid > 0 and not section.at:
        return
    extra = section.extra
    if extra is None:
        extra = section.extra = Attributes()
    if extra.attributes is None:
        extra.attributes = {}
    extra.attributes.update(safe_attributes(attributes))
    while len(extra.attributes) > MAX_ATTRIBUTES:
        extra.attributes.popitem()


def set_safely(section: SectionContext, attributes: Mapping[Any, Any]) -> None:
    """Add attributes to a new or open section; an internal error is only counted."""
    try:
        set_attributes(section, attributes)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
