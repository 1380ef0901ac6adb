"""Trace and span ids in the log records of the program.

The ids are added on request as fields of each log record. Their names are those of
``opentelemetry-instrumentation-logging``, so that its formats work, and shorter aliases.
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

    Formats for ``opentelemetry-instrumentation-logging`` work unchanged. A second call does
    nothing. Each record has these fields:

    * ``trace_id`` and ``span_id``: 32 and 16 hexadecimal digits, as shown by Jaeger; ``0`` outside
      sections.

    * ``otelTraceID`` and ``otelSpanID``: the same values.

    * ``otelTraceSampled``: True if the trace is certain to be sampled.

    * ``otelServiceName``: the name of the service.
    """
    before = logging.getLogRecordFactory()
    if not isinstance(before, _WithIds):
        logging.setLogRecordFactory(_WithIds(before))


class _WithIds:
    """Log record factory that calls the previous factory and adds the id fields."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        # Always set all fields: a format that refers to a missing field would fail.
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
