"""Trace and span ids in the log records of the program.

The ids are fields of the log record, added on request. The field names are those of
``opentelemetry-instrumentation-logging``, so that its formats work, and shorter ones.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.recording import unreplaced

if TYPE_CHECKING:
    from collections.abc import Callable

_NONE: Final = {
    "trace_id": "0",
    "span_id": "0",
    "otelTraceID": "0",
    "otelSpanID": "0",
    "otelTraceSampled": False,
    "otelServiceName": "",
}


def log_ids() -> None:
    """Add the ids of the enclosing section to each record of ``logging``.

    ::

        om.log_ids()
        logging.basicConfig(format="%(message)s trace_id=%(trace_id)s span_id=%(span_id)s")

    The fields ``trace_id`` and ``span_id`` are those that Jaeger shows, 32 and 16 hexadecimal
    digits; they are ``0`` where there is no section. ``otelTraceID`` and ``otelSpanID`` are the
    same. ``otelTraceSampled`` is whether the trace is certain to be sampled, and
    ``otelServiceName`` is the name of the service. So a format written for
    ``opentelemetry-instrumentation-logging`` works. A second call does nothing.
    """
    before = logging.getLogRecordFactory()
    if not isinstance(before, _WithIds):
        logging.setLogRecordFactory(_WithIds(before))


class _WithIds:
    """Record factory that calls the previous factory and adds the id fields."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        # A format that names a field must find it, even if the span cannot be determined.
        record.__dict__.update(_NONE)
        try:
            _add_ids(record)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
        return record


def _add_ids(record: logging.LogRecord) -> None:
    recorder = unreplaced()
    if recorder is not None:
        record.otelServiceName = recorder.meta.service
    about = trace.get_current_span().get_span_context()
    if about.is_valid:
        record.trace_id = record.otelTraceID = trace.format_trace_id(about.trace_id)
        record.span_id = record.otelSpanID = trace.format_span_id(about.span_id)
        record.otelTraceSampled = about.trace_flags.sampled
