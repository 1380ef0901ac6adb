"""State of an open section, which is also an OpenTelemetry context.

A section object is stored in opentelemetry-api's own ContextVar and responds like a ``Context``, so
that nothing has to be built in the common case that nothing queries it: see ``section_span``.
"""

from __future__ import annotations

import contextvars
import struct
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, ClassVar

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace.propagation import _SPAN_KEY

from otel_mlperf.recorder.core.attribute_values import MOST_ATTRIBUTES, safe_attributes
from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

    from opentelemetry.trace import Span

    from otel_mlperf.recorder.core.recording import Recording

PARENTS = struct.Struct("<QQQ")
"""Struct of parent, root and track: the same three fields of a row and of an open-table entry."""
SLOW = -1
"""The id of a fresh section that must not be entered by the fast path."""
NO_ENTRY = 1 << 62
"""``at`` of an open section for which the table had no room: indexing with it fails."""
SECTION_KEY = otel_context.create_key("otel_mlperf-section")
"""Key of the section in contexts that are derived from it."""


def _find_variable() -> ContextVar[Any]:
    # Private, but it makes a section visible at the cost of one set: attach() and detach() cost 0.8
    # µs more. With a replaced runtime context (OTEL_PYTHON_CONTEXT) the recorder uses its own.
    variable = getattr(otel_context._RUNTIME_CONTEXT, "_current_context", None)
    if isinstance(variable, ContextVar):
        return variable
    return ContextVar("otel_mlperf", default=Context())  # noqa: B039 - a Context is immutable


CURRENT = _find_variable()
NOTHING: Context = contextvars.Context().run(CURRENT.get)


class Extra:
    """Data that only some sections have; its presence sends the exit to the slow path."""

    # Defaults of the class, not set one by one: most sections with an extra have attributes only.
    attributes: dict[str, Any] | None = None
    links: list[list[Any]] | None = None
    """For each link: high and low half of the trace id, span id, flags and attributes."""
    status: list[Any] | None = None
    """Code and description that was set through OpenTelemetry; OK is final."""
    events: list[list[Any]] | None = None
    """Monotonic time in ns, name and attributes of each event."""
    dropped_events = 0
    is_parent_remote = False
    """Whether the parent is a span of another process."""
    span: Span | None = None
    again: list[Any] | None = None
    """Sections made by entering this section while it was open."""
    step: Any = None
    """The step that the section interrupts."""
    within: Any = None
    """The aggregated section that directly encloses this one."""
    usage: Any = None
    """Resource usage, while it is measured."""
    profiled: Any = None
    """The profiler that is, or was, on the section."""
    is_call = False
    """Whether the section is that of a function, which queries the function to call instead."""
    stamp: Any = None
    """The start stamp that a GPU passes, while the section is open."""
    flags = 0
    """Flags of its row, in addition to derived flags."""
    excluded_ns = 0
    """Time inside the section but outside its step: a checkpoint."""
    latest: list[Any] | None = None
    """For an ended marked step: see ``OpenStep.latest``."""


class Attributes(Extra):
    """An extra with attributes only: the exit needs no further checks."""


class SectionContext:
    """A section as an OpenTelemetry context; the recording half is in ``section``.

    ``at`` is the byte offset of its entry in the open table, 0 while it is not open.
    """

    __slots__ = ("at", "chunk", "entry", "extra", "inner", "sid", "t0", "token", "track")

    recording: Recording
    """Class attribute: each journal has a section class of its own."""
    adds_up: ClassVar[bool] = False
    """Whether it is an aggregated section: it encloses others, but is no parent."""
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
        """Record attributes of this section; later values win."""
        # Inlined from set_safely(), which would cost one more call.
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
        """Return a value of the context; the current span is made on demand."""
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
    """Return what was current before the section; None at the start of a context."""
    # A signal handler may look before the token is stored.
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
    """Yield the sections that a context is in, innermost first, also through foreign contexts."""
    while context is not None:
        if isinstance(context, SectionContext):
            yield context
            context = context_above(context)
        else:
            opened = getattr(context.get(_SPAN_KEY), "section", None)
            # A section opened through OpenTelemetry is current only as a value of a foreign
            # context.
            if isinstance(opened, SectionContext) and getattr(opened, "token", None) is None:
                yield opened
            context = context.get(SECTION_KEY)


def aggregate_around(context: Any, track: int) -> Any:
    """Return the open aggregated section directly around a context on a track; None: none."""
    for section in sections_above(context):
        if section.at and not section.recording.is_retired:
            return section if section.adds_up and section.track == track else None
    return None


def surface() -> None:
    """Make the nearest context current that is not a section, after all sections have ended."""
    current = CURRENT.get()
    if isinstance(current, SectionContext) and not current.at:
        CURRENT.set(context_below(current))


def inner_of(section: SectionContext) -> bytes:
    """Return parents and track for the section's children on the same track."""
    _, root, track = PARENTS.unpack(section.chunk)
    section.inner = PARENTS.pack(section.sid, root, track)
    return section.inner


def root_of(section: SectionContext) -> int:
    """Return the span id that determines the section's trace."""
    return int(PARENTS.unpack(section.chunk)[1])


def extra_of(section: SectionContext) -> Extra:
    """Return the section's ``Extra``, made if there is none."""
    extra = section.extra
    if extra is None or extra.__class__ is Attributes:
        section.extra = Extra()
        if extra is not None:
            section.extra.attributes = extra.attributes
        return section.extra
    return extra


def set_attributes(section: SectionContext, attributes: Mapping[Any, Any]) -> None:
    """Add attributes to an open section, converted immediately: values may change later."""
    if section.sid > 0 and not section.at:
        return
    extra = section.extra
    if extra is None:
        extra = section.extra = Attributes()
    if extra.attributes is None:
        extra.attributes = {}
    extra.attributes.update(safe_attributes(attributes))
    while len(extra.attributes) > MOST_ATTRIBUTES:
        extra.attributes.popitem()


def set_safely(section: SectionContext, attributes: Mapping[Any, Any]) -> None:
    """Add attributes of any kind to an open section; never raises."""
    try:
        set_attributes(section, attributes)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
