"""Do a span and a metric that are sent arrive in Jaeger and Prometheus?"""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

import numpy as np

from otel_mlperf import names
from otel_mlperf.findings.check import Check
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.client import Client, Outcome
from otel_mlperf.otlp.metric_encoding import GaugePoints, MetricData, NumberPoint, encode_metrics
from otel_mlperf.otlp.span_columns import SpanColumns
from otel_mlperf.otlp.span_content import span_tail
from otel_mlperf.otlp.span_encoding import encode_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mlperf.otlp.endpoint_settings import SignalSettings

JAEGER_VARIABLE: Final = "OTEL_MLPERF_JAEGER_URL"
PROMETHEUS_VARIABLE: Final = "OTEL_MLPERF_PROMETHEUS_URL"
_JAEGER: Final = "http://localhost:16686"
_PROMETHEUS: Final = "http://localhost:9090"
_ARRIVES_WITHIN_S: Final = 15.0
_LOOK_EVERY_S: Final = 0.25
_ANSWER_S: Final = 3.0
_OPENER = build_opener(ProxyHandler({}))


def check_backends(
    environ: Mapping[str, str], reached: Mapping[str, SignalSettings]
) -> list[Check]:
    """Sends one span and one metric to the endpoint and looks for them where they should end."""
    checks = []
    jaeger = environ.get(JAEGER_VARIABLE) or _JAEGER
    prometheus = environ.get(PROMETHEUS_VARIABLE) or _PROMETHEUS
    if "traces" in reached:
        trace = uuid.uuid4().hex
        url = f"{jaeger}/api/v3/traces/{trace}"
        body = _span(trace)
        checks.append(
            _round_trip("jaeger", jaeger, reached["traces"], body, lambda: _has_trace(url))
        )
    if "metrics" in reached:
        # Unlike any before, and exact as a double: an answer to it can only be this very point.
        value = float(time.time_ns() // 1_000_000)
        query = quote(f"{names.DOCTOR_CHECK.prometheus} == {value:.0f}")
        ask = f"{prometheus}/api/v1/query?query={query}"
        checks.append(
            _round_trip(
                "prometheus", prometheus, reached["metrics"], _metric(value),
                lambda: bool(_answer(ask)["data"]["result"]),
            )
        )  # fmt: skip
    return checks


def _round_trip(
    what: str, url: str, settings: SignalSettings, body: bytes, arrived: Callable[[], bool]
) -> Check:
    # Asked before anything is sent: an address that is only our guess must not become a failure.
    try:
        arrived()
    except (OSError, ValueError, KeyError):
        variable = JAEGER_VARIABLE if what == "jaeger" else PROMETHEUS_VARIABLE
        return Check("ok", what, f"none at {url}: {variable} says where to look")
    client = Client(settings)
    answer = client.post(body)
    client.close()
    item = "span" if settings.signal == "traces" else "metric"
    if answer.outcome is not Outcome.DELIVERED or answer.rejected:
        return Check("FAIL", what, f"the {item} was refused: {answer.reason}", "read its log")
    begun = time.monotonic()
    while time.monotonic() < begun + _ARRIVES_WITHIN_S:
        if _is_there(arrived):
            seconds = time.monotonic() - begun
            return Check("ok", what, f"a {item} sent was found at {url} after {seconds:.1f} s")
        time.sleep(_LOOK_EVERY_S)
    found = f"a {item} sent to {settings.endpoint} is not at {url} after {_ARRIVES_WITHIN_S:.0f} s"
    return Check("FAIL", what, found, "does the Collector export there? read its log")


def _is_there(arrived: Callable[[], bool]) -> bool:
    try:
        return arrived()
    except (OSError, ValueError, KeyError):  # it answered before: it is asked again
        return False


def _has_trace(url: str) -> bool:
    try:
        return "result" in _answer(url)
    except HTTPError as error:
        if error.code == 404:
            return False
        raise


def _answer(url: str) -> Any:
    try:
        with _OPENER.open(url, timeout=_ANSWER_S) as answer:
            return json.loads(answer.read())
    except HTTPError:
        raise
    except URLError as error:
        raise OSError(str(error.reason)) from error


def _span(trace: str) -> bytes:
    now = time.time_ns()
    columns = SpanColumns(
        trace_id=np.frombuffer(bytes.fromhex(trace), np.uint8).reshape(1, 16),
        span_id=np.frombuffer(os.urandom(8), np.uint64) | np.uint64(1),
        parent_id=np.zeros(1, np.uint64),
        start_ns=np.array([now - 1_000_000], np.uint64),
        end_ns=np.array([now], np.uint64),
        tail=np.zeros(1, np.int32),
        tails=[span_tail(names.SPAN_DOCTOR)],
    )
    return encode_spans(_resource(), wire.encode_scope(names.SCOPE), columns, names.SCHEMA_URL)


def _metric(value: float) -> bytes:
    point = NumberPoint(attributes={}, time_ns=time.time_ns(), value=value)
    metric = names.DOCTOR_CHECK
    data = MetricData(metric.name, metric.unit, metric.meaning, GaugePoints([point]))
    return encode_metrics(_resource(), wire.encode_scope(names.SCOPE), [data], names.SCHEMA_URL)


def _resource() -> bytes:
    return wire.encode_resource({names.SERVICE_NAME: names.SERVICE_DOCTOR})
