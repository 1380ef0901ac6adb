"""How do spans that other libraries make through the OpenTelemetry API land in the journal?

Only on request (``provider="install"``): the API accepts one provider for a process's lifetime, and
it belongs to the application.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, Span, Tracer, TracerProvider
from opentelemetry.util._decorator import _agnosticcontextmanager

from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.attribute_values import safe_attributes, safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, say_once
from otel_mlperf.recorder.sections.section_context import CURRENT, SectionContext, extra_of
from otel_mlperf.recorder.sections.section_span import SectionSpan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opentelemetry.trace import SpanContext

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.section import Section


def install() -> None:
    """Makes our provider the application's, unless it has one."""
    if type(trace.get_tracer_provider()).__name__ != "ProxyTracerProvider":
        say_once("provider='install': the application has a tracer provider already; it is left "
                 "alone, and spans of other libraries go there")  # fmt: skip
        return
    trace.set_tracer_provider(JournalTracerProvider())


class JournalTracerProvider(TracerProvider):
    """Hands out tracers that write to the active run's journal."""

    def get_tracer(self, *names: Any, **more: Any) -> Tracer:
        """A tracer; libraries are not told apart."""
        return JournalTracer()


class JournalTracer(Tracer):
    """Makes sections of spans."""

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
        """Opens a section that ends with ``end()``; it is not made current.

        Without a run it is a span that records nothing and hands the context on.
        """
        recorder = active()
        if recorder is None:
            return NonRecordingSpan(trace.get_current_span(context).get_span_context())
        try:
            section = _open(recorder, name, context, attributes or {})
            about = section.as_span().get_span_context()
            span = OpenedSpan(section, about, recorder.sections.close)
            extra_of(section).span = span
            for link in links or ():
                span.add_link(link.context, link.attributes)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return INVALID_SPAN
        return span

    @_agnosticcontextmanager
    def start_as_current_span(  # noqa: PLR0913, PLR0917 - the API's signature
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
    ) -> Iterator[Span]:
        """Opens a section, makes it current and ends it with the block."""
        span = self.start_span(name, context, kind, attributes, links)
        with trace.use_span(span, end_on_exit, record_exception, set_status_on_exception):
            yield span


class OpenedSpan(SectionSpan):
    """A span that ends when it is told to."""

    __slots__ = ("_close",)

    def __init__(
        self,
        section: SectionContext,
        context: SpanContext,
        close: Callable[[SectionContext, int], None],
    ) -> None:
        super().__init__(section, context)
        self._close = close

    def end(self, end_time: int | None = None) -> None:
        """Ends the section; again does nothing."""
        try:
            self._close(self.section, time.monotonic_ns())
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


def _open(recorder: Recorder, name: str, context: Any, attributes: Mapping[str, Any]) -> Section:
    text = safe_name_text(name)
    section, sid = recorder.sections.make(recorder.registry.entry(text, text)), recorder.next_id()
    if attributes:
        extra_of(section).attributes = safe_attributes(attributes)
    around = CURRENT.get() if context is None else context
    chunk, track = recorder.parents.place(around, sid, section)
    recorder.sections.open(section, sid, chunk, track)
    return section
