"""How does what other libraries record through the OpenTelemetry API land in the journal?

Only on request (``provider="install"``): the API accepts one provider of each kind for a process's
lifetime, and it belongs to the application.
"""

from __future__ import annotations

from opentelemetry import trace

from otel_mlperf.recorder.api.otel_tracer import JournalTracerProvider
from otel_mlperf.recorder.core.faults import say_once


def install() -> None:
    """Makes our provider the application's, unless it has one."""
    if isinstance(before := trace.get_tracer_provider(), JournalTracerProvider):
        return
    if type(before).__name__ != "ProxyTracerProvider":
        say_once("provider='install': the application has a tracer provider already; it is left "
                 "alone, and spans of other libraries go there")  # fmt: skip
        return
    trace.set_tracer_provider(JournalTracerProvider())
