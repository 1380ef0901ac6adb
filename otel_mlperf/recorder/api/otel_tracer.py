"""OpenTelemetry tracer provider that records other libraries' spans as sections.

Most spans are opened, made current and ended by one ``with`` statement in one thread. Such a span
costs little more than a section, because its ids, for example, are derived only on request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    Span,
    SpanKind,
    Tracer,
    TracerProvider,
)
from opentelemetry.util._decorator import _agnosticcontextmanager

from otel_mlperf import names
from otel_mlperf.recorder.api.span import active, is_compiling
from otel_mlperf.recorder.core.attribute_values import safe_attributes, safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.sections.section_context import CURRENT, Attributes
from otel_mlperf.recorder.sections.section_span import SectionSpan, monotonic_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from opentelemetry.trace import SpanContext

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.section import Section


class JournalTracerProvider(TracerProvider):
    """Provider of tracers that write to the active run's journal."""

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Any = None,
    ) -> Tracer:
        """Return a tracer with the library's name, version and schema URL as scope."""
        given = (instrumenting_module_name, instrumenting_library_version, schema_url)
        fields = zip(names.SCOPE_FIELDS, given, strict=True)
        return JournalTracer({key: safe_name_text(value) for key, value in fields if value})


class JournalTracer(Tracer):
    """Tracer that records spans as sections.

    Args:
        scope: instrumentation scope of the spans, as constant attributes.
    """

    def __init__(self, scope: Mapping[str, str]) -> None:
        self._scope, self._key = scope, tuple(scope.values())

    def start_span(
        self,
        name: str,
        context: Any = None,
        kind: Any = None,
        attributes: Any = None,
        links: Sequence[Any] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        """Return the span of an opened section, which is not current and ends with ``end()``.

        Without a run, return a span that records nothing and propagates the context.
        """
        try:
            recorder = active()
            if recorder is None or is_compiling():
                return NonRecordingSpan(trace.get_current_span(context).get_span_context())
            section = self._section(recorder, name, kind, attributes)
            _open(recorder, section, context, start_time)
            span = OpenedSpan(section)
            for link in links or ():
                span.add_link(link.context, link.attributes)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return INVALID_SPAN
        return span

    def start_as_current_span(  # noqa: PLR0913, PLR0917 - the API's
        self,
        name: str,
        context: Any = None,
        kind: Any = None,
        attributes: Any = None,
        links: Sequence[Any] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Any:
        """Return a context manager and decorator for a section that is current in its block."""
        is_usual = record_exception and set_status_on_exception and end_on_exit
        if context is None and start_time is None and not links and is_usual:
            try:
                recorder = active()
                if recorder is not None and not is_compiling():
                    section = self._section(recorder, name, kind, attributes)
                    return BlockSpan(section, self, name, kind, attributes)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)
        return self.make_current(
            (name, context, kind, attributes, links, start_time),
            end_on_exit, record_exception, set_status_on_exception,
        )  # fmt: skip

    @_agnosticcontextmanager
    def make_current(self, about: tuple[Any, ...], *how: bool) -> Iterator[Span]:
        """Open a section when the block, or a call of the decorated function, is entered."""
        with trace.use_span(span := self.start_span(*about), *how):
            yield span

    def _section(self, recorder: Recorder, name: str, kind: Any, attributes: Any) -> Section:
        text = name if type(name) is str else safe_name_text(name)
        key = (text, kind, self._key)
        entry = recorder.registry.known.get(key)
        if entry is None:
            constant = {**self._scope, **_kind_attribute(kind)}
            entry = recorder.registry.entry(key, text, None, constant)
        section = recorder.sections.make(entry)
        section.at = 0  # may be read before the section is entered
        if attributes:
            if isinstance(attributes, Mapping):
                extra = section.extra = Attributes()
                extra.attributes = safe_attributes(attributes)
            else:
                kind_of_attributes = type(attributes).__name__
                warn_once(
                    f"the span {text!r}: found attributes of type {kind_of_attributes}, expected a "
                    "mapping; ignored"
                )
        return section


def _kind_attribute(kind: Any) -> dict[str, str]:
    is_recorded = isinstance(kind, SpanKind) and kind is not SpanKind.INTERNAL
    return {names.SPAN_KIND: kind.name.lower()} if is_recorded else {}


class ForeignSpan(SectionSpan):
    """Span of a section that a library created by a tracer."""

    __slots__ = ()

    def __init__(self, section: Section) -> None:
        self.section = section

    def get_span_context(self) -> SpanContext:
        """Return the trace id and span id with which the section is exported."""
        try:
            return self._context
        except AttributeError:
            self._context = self.section.as_span().get_span_context()
            return self._context

    def end(self, end_time: int | None = None) -> None:
        """End the section; idempotent."""
        try:
            section, now = self.section, time.monotonic_ns()
            recorder: Any = section.recording
            t1 = now if end_time is None else monotonic_time(recorder, end_time, now)
            recorder.sections.close(section, max(t1, getattr(section, "t0", 0)))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


class OpenedSpan(ForeignSpan):
    """Span that ends by a call of ``end()``."""

    __slots__ = ()


class BlockSpan(ForeignSpan):
    """Span that ``with`` opens, makes current and ends; also a decorator."""

    __slots__ = ("_about",)

    def __init__(self, section: Section, *about: Any) -> None:
        self.section = section
        self._about = about

    def __enter__(self) -> BlockSpan:
        section: Any = self.section
        section.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        section: Any = self.section
        if section.at:
            section.__exit__(kind, error, trace)
        else:  # already ended by ``end()``
            section.recording.sections.leave(section)

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Decorate a function or coroutine function: each call gets its own span."""
        tracer, name, kind, attributes = self._about
        return tracer.make_current(
            (name, None, kind, attributes, None, None), True, True, True
        )(function)  # fmt: skip


def _open(recorder: Recorder, section: Section, context: Any, start_time: int | None) -> None:
    sid, now = recorder.next_id(), time.monotonic_ns()
    around = CURRENT.get() if context is None else context
    chunk, track = recorder.parents.place(around, sid, section)
    t0 = 0 if start_time is None else monotonic_time(recorder, start_time, now)
    recorder.sections.open(section, sid, chunk, track, t0)
