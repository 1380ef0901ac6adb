"""Conversion of spans and metric points to destination items, and encoding of stored batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf import names
from otel_mlperf.agent.delivery.destination import Batch, PointItem, SpanItem
from otel_mlperf.agent.model.scalar_item import ScalarItem
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.metric_encoding import GaugePoints, NumberPoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_mlperf.agent.delivery.destination import Form, Instrument, Signal
    from otel_mlperf.agent.delivery.request_files import WaitingRequest
    from otel_mlperf.agent.model.kept_span import SampledSpan
    from otel_mlperf.otlp.metric_encoding import ExponentialPoint, HistogramPoint, MetricData

_MAX_INT64: Final = (1 << 63) - 1
_BODY: Final = tuple[dict[str, Any], list[SpanItem], list[PointItem]]
_SCALARS: Final = tuple[dict[str, Any], list[ScalarItem]]
_ENCODE: Final = msgspec.msgpack.Encoder(enc_hook=str).encode
"""Encoder of batches; attribute values of unsupported types are encoded as text."""


def span_items(spans: Iterable[SampledSpan]) -> list[SpanItem]:
    """Convert sampled spans to destination items."""
    return [_span_item(kept) for kept in spans]


def _span_item(kept: SampledSpan) -> SpanItem:
    meta, (name, category, phase, constant) = kept.journal.meta, kept.entry
    attributes = constant | kept.attributes()
    attributes |= dict(zip(names.EXCEPTION, kept.exception_texts, strict=False))
    optional = {
        names.STATUS_DESCRIPTION: kept.stored_description,
        names.DROPPED_EVENTS: kept.dropped_events,
        names.DROPPED_LINKS: kept.dropped_links,
        names.REMOTE_PARENT: kept.is_parent_remote,
        names.TRACE_STATE: kept.trace_state,
        names.UNSAMPLED: kept.is_unsampled,
    }
    attributes |= {key: value for key, value in optional.items() if value}
    return SpanItem(
        rank=meta.rank,
        restart=meta.restart,
        trace_id=kept.trace.hex(),
        span_id=_hex(kept.span),
        parent_id=_hex(kept.parent),
        name=name,
        category=category,
        phase=phase,
        # Tracks are unsigned 64-bit numbers; the tables have signed ones.
        track=kept.track & _MAX_INT64,
        thread=kept.thread[1],
        thread_id=kept.thread[0] if kept.thread[0] >= 0 else None,
        start_ns=kept.unix(kept.start),
        end_ns=kept.unix(kept.end),
        status=kept.status,
        interrupted=kept.interrupted,
        root_id=_hex(kept.root),
        n=kept.n,
        number=kept.number,
        epoch=kept.epoch,
        kept=kept.reason,
        attributes=attributes,
        links=[_link_item(*link) for link in kept.all_links()],
        events=kept.events,
        kind=kept.kind,
        marks=kept.marks,
        marks_left_out=kept.marks_left_out,
    )


def _link_item(trace: bytes, span: int, *more: Any) -> tuple[Any, ...]:
    return (trace.hex(), _hex(span), *(more if more != ({}, wire.LOCAL) else ()))


def _hex(span: int) -> str:
    return f"{span:016x}" if span else ""


def count_items(spans: Iterable[SampledSpan | SpanItem]) -> int:
    """Return the number of ``spans`` that the accounts count: all but roll-ups and segments."""
    return sum(span.kind == "section" for span in spans)


def point_items(metrics: Iterable[MetricData]) -> list[PointItem]:
    """Convert metric points to destination items; histograms become sum, count and extremes."""
    return [_point_item(metric, point) for metric in metrics for point in metric.data.points]


def _point_item(
    metric: MetricData, point: NumberPoint | HistogramPoint | ExponentialPoint
) -> PointItem:
    instrument: Instrument = "histogram"
    distribution: dict[str, Any] = {}
    if isinstance(point, NumberPoint):
        instrument = "gauge" if isinstance(metric.data, GaugePoints) else "sum"
        value = point.value
    else:
        value = point.sum
        distribution = {"count": point.count, "min": point.min, "max": point.max}
    return PointItem(
        name=metric.name,
        unit=metric.unit,
        instrument=instrument,
        labels=dict(point.attributes),
        time_ns=point.time_ns,
        start_ns=point.start_ns,
        value=value,
        **distribution,
    )


def encode_batch(
    resource: Mapping[str, object],
    *,
    spans: Sequence[SpanItem] = (),
    points: Sequence[PointItem] = (),
) -> bytes:
    """Encode a batch for the outbox, where the file name contains all other fields of the batch."""
    return _ENCODE([resource, spans, points])


def encode_scalars(resource: Mapping[str, object], scalars: Sequence[ScalarItem]) -> bytes:
    """Encode a batch of scalars for the outbox. Counterpart: ``decode_batch``."""
    return _ENCODE([resource, scalars])


def decode_batch(form: Form, signal: Signal, request: WaitingRequest, body: bytes) -> Batch:
    """Decode the stored ``body`` of a request into a batch of the destination's form."""
    number, items = request.number, request.items
    if form == "otlp":
        return Batch(number=number, signal=signal, items=items, otlp=body)
    if signal == "reports":
        return Batch(number=number, signal=signal, items=items, report=body)
    if signal == "scalars":
        resource, scalars = msgspec.msgpack.decode(body, type=_SCALARS)
        return Batch(number=number, signal=signal, items=items, resource=resource, scalars=scalars)
    # An earlier version may have written the batch: missing fields get their defaults.
    resource, spans, points = msgspec.msgpack.decode(body, type=_BODY)
    return Batch(
        number=number, signal=signal, items=items, resource=resource, spans=spans, points=points
    )
