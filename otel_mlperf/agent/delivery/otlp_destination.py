"""Destination that sends spans and metrics to OTLP servers.

A request that the server cannot read is halved recursively until the invalid span or metric is
isolated. That item is counted as lost, and all other items are delivered.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.delivery.batches import count_items
from otel_mlperf.agent.delivery.destination import Delivered, Destination, TryLater
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.grpc_client import open_client
from otel_mlperf.otlp.http_client import Outcome
from otel_mlperf.otlp.metric_encoding import encode_metrics
from otel_mlperf.otlp.span_content import (
    OWN_SCOPE,
    OwnFields,
    Scope,
    SpanEvent,
    SpanLink,
    exception_events,
    mark_event,
    shared_attributes,
    span_extra,
    span_tail,
    take_kind_and_scope,
)
from otel_mlperf.otlp.span_encoding import SpanColumns, cut, encode_spans
from otel_mlperf.otlp.split import post_in_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_mlperf.agent.delivery.destination import Batch, DestinationContext, Signal, Verdict
    from otel_mlperf.agent.model.kept_span import SampledSpan
    from otel_mlperf.otlp.endpoint_settings import SignalSettings
    from otel_mlperf.otlp.http_client import ServerAnswer
    from otel_mlperf.otlp.metric_encoding import MetricData

_log = logging.getLogger("otel_mlperf.agent")
_MAX_BYTES: Final = 2 << 20
"""Maximum size of the spans in a request, in bytes; gRPC servers accept 4 MiB."""
_LOG_EVERY_S: Final = 60.0
_LOCKED_OUT_S: Final = 30.0
"""Minimum wait after a rejected login, which only the user can correct."""


class OtlpDestination(Destination):
    """Destination for the OTLP server of each signal that has an endpoint."""

    name = "otlp"
    form = "otlp"

    def __init__(self, settings: Mapping[Signal, SignalSettings]) -> None:
        self.signals = tuple(settings)
        # One client per signal, because clients are not thread-safe and each signal has its own
        # thread.
        self._clients = {signal: open_client(of_signal) for signal, of_signal in settings.items()}
        self._logged_s = -_LOG_EVERY_S

    def accept(self, batch: Batch) -> Verdict:
        """Post the batch. Requests that the server cannot read or finds too large are halved."""
        lost: dict[str, int] = {}
        # Use OTLP's names of the signals.
        kind = "traces" if batch.signal == "spans" else "metrics"
        answer = post_in_parts(partial(self._post, batch.signal), batch.otlp, kind, lost)
        if answer.outcome is Outcome.DELIVERED:
            return Delivered(lost)
        # The whole batch is sent again, including accepted parts. Losses are not counted now,
        # because the server will refuse the same items at the next try.
        after_s = answer.after_s
        if answer.outcome is Outcome.UNAUTHORIZED:
            after_s = max(after_s or 0.0, _LOCKED_OUT_S)
        return TryLater(answer.reason, after_s)

    def _post(self, signal: Signal, body: bytes) -> ServerAnswer:
        answer = self._clients[signal].post(body)
        if answer.rejected:
            self._warn(signal, answer)
        return answer

    def _warn(self, signal: Signal, answer: ServerAnswer) -> None:
        now = time.monotonic()
        if now - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now
            _log.warning(
                "%s: the server accepted a request, but rejected %d items of the request: %s",
                signal, answer.rejected, answer.reason,
            )  # fmt: skip

    def close(self, signal: Signal) -> None:
        """Close the connection for ``signal``."""
        self._clients[signal].close()


def make(site: DestinationContext) -> OtlpDestination | None:
    """Create the destination for the servers in the options; None if no server is configured."""
    given: dict[Signal, SignalSettings | None] = {
        "spans": site.options.traces,
        "metrics": site.options.metrics,
    }
    settings = {signal: of_signal for signal, of_signal in given.items() if of_signal is not None}
    return OtlpDestination(settings) if settings else None


def span_requests(
    resource: Mapping[str, object], spans: Sequence[SampledSpan]
) -> Iterator[tuple[int, bytes]]:
    """Yield requests for all spans of one rank: number of items, and encoded body."""
    encoded = wire.encode_resource(resource)
    for scope, of_scope in _by_scope(spans).items():
        about = scope.encode()
        at = 0
        for columns in cut(span_columns(of_scope), _MAX_BYTES):
            items = count_items(of_scope[at : at + len(columns)])
            at += len(columns)
            body = encode_spans(encoded, about, columns, names.SCHEMA_URL, scope.schema_url)
            yield items, body


def _by_scope(spans: Sequence[SampledSpan]) -> dict[Scope, list[SampledSpan]]:
    known: dict[tuple[int, int], Scope] = {}
    groups: dict[Scope, list[SampledSpan]] = {}
    for kept in spans:
        key = (id(kept.journal), kept.name)
        if key not in known:
            known[key] = take_kind_and_scope(dict(kept.entry[3]))[1]
        groups.setdefault(known[key], []).append(kept)
    return groups


def metric_requests(
    resource: Mapping[str, object], metrics: Sequence[MetricData], scopes: Mapping[str, Scope]
) -> Iterator[tuple[int, bytes]]:
    """Yield requests for all metrics of a rank or the node: number of points, and encoded body.

    Args:
        resource: resource attributes of the rank or the node.
        metrics: the metrics to send.
        scopes: instrumentation scope by metric name (default: this package).
    """
    encoded = wire.encode_resource(resource)
    groups: dict[Scope, list[MetricData]] = {}
    for metric in metrics:
        groups.setdefault(scopes.get(metric.name, OWN_SCOPE), []).append(metric)
    for scope, of_scope in groups.items():
        about = scope.encode(), of_scope, names.SCHEMA_URL, scope.schema_url
        yield sum(len(one.data.points) for one in of_scope), encode_metrics(encoded, *about)


def span_columns(spans: Sequence[SampledSpan]) -> SpanColumns:
    """Convert spans of one rank to columns for the OTLP encoder."""
    tails: dict[tuple[int, int, int], int] = {}
    encoded: list[bytes] = []
    tail = []
    for kept in spans:
        key = (id(kept.journal), kept.name, kept.track)
        if key not in tails:
            tails[key] = len(encoded)
            encoded.append(_tail(kept))
        tail.append(tails[key])
    extra = {i: more for i, kept in enumerate(spans) if (more := _extra(kept))}
    return SpanColumns(
        trace_id=np.frombuffer(b"".join(k.trace for k in spans), np.uint8).reshape(-1, 16),
        span_id=np.array([k.span for k in spans], np.uint64),
        parent_id=np.array([k.parent for k in spans], np.uint64),
        start_ns=np.array([k.unix(k.start) for k in spans], np.uint64),
        end_ns=np.array([k.unix(k.end) for k in spans], np.uint64),
        tail=np.array(tail, np.int32),
        tails=encoded,
        extra=extra,
    )


def _tail(kept: SampledSpan) -> bytes:
    name, category, phase, constant = kept.entry
    native, thread = kept.thread
    about = {
        "category": category,
        "phase": phase,
        "thread_id": native if native >= 0 else None,
        "thread": thread,
    }
    attributes = shared_attributes(about) | constant
    kind, _ = take_kind_and_scope(attributes)
    return span_tail(name, attributes, kind)


def _extra(kept: SampledSpan) -> bytes:
    exception = dict(zip(names.EXCEPTION, kept.exception_texts, strict=False))
    events = exception_events(kept.unix(kept.end), exception)
    events += [SpanEvent(*event) for event in kept.events]
    events += [mark_event(*mark) for mark in kept.marks]
    return span_extra(
        OwnFields(
            kept.attributes(),
            events,
            [SpanLink(*link) for link in kept.all_links()],
            error=kept.status_description if kept.status == "error" else None,
            events_left_out=kept.marks_left_out + kept.dropped_events,
            links_left_out=kept.dropped_links,
            is_ok=kept.status == "ok",
            is_parent_remote=kept.is_parent_remote,
            trace_state=kept.trace_state,
        )
    )
