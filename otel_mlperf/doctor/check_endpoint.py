"""Checks of telemetry servers: DNS, TCP, TLS, OTLP, Jaeger and Prometheus."""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
import uuid
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, build_opener

import numpy as np

from otel_mlperf import names
from otel_mlperf.findings.finding import Check
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.endpoint_settings import port_hint, read_settings
from otel_mlperf.otlp.grpc_client import open_client
from otel_mlperf.otlp.http_client import Outcome
from otel_mlperf.otlp.metric_encoding import GaugePoints, MetricData, NumberPoint, encode_metrics
from otel_mlperf.otlp.span_content import OWN_SCOPE, span_tail
from otel_mlperf.otlp.span_encoding import SpanColumns, encode_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mlperf.analysis.run.item_accounts import Accounts
    from otel_mlperf.otlp.endpoint_settings import Signal, SignalSettings

_PATIENCE_S: Final = 3.0
_SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics")
JAEGER_VARIABLE: Final = "OTEL_MLPERF_JAEGER_URL"
PROMETHEUS_VARIABLE: Final = "OTEL_MLPERF_PROMETHEUS_URL"
_ACCOUNTS: Final[dict[Signal, str]] = {"traces": "spans", "metrics": "metrics"}
"""Name of each OTLP signal in a run's accounts."""
_OTLP: Final = "otlp"
"""Name of an OTLP server as a destination in a run's accounts."""
_UNSENT: Final = "no OTLP endpoint is set: data is stored in the run folder only"
_SENT: Final = "no endpoint is set in this shell: the server of the run is not checked"
_JAEGER: Final = "http://localhost:16686"
_PROMETHEUS: Final = "http://localhost:9090"
_ARRIVES_WITHIN_S: Final = 15.0
_LOOK_EVERY_S: Final = 0.25
_ANSWER_S: Final = 3.0
_TRACES_ALONE: Final = (
    "if the server accepts only traces (like Jaeger), set OTEL_METRICS_EXPORTER=none; "
    "otherwise check the path of the endpoint"
)
_LOG: Final = "read the log of the server"
_OPENER = build_opener(ProxyHandler({}))


def check_endpoints(
    environ: Mapping[str, str], accounts: Accounts | None = None
) -> tuple[list[Check], dict[str, SignalSettings]]:
    """Check the server of each OTLP signal; return the checks, and settings of signals that passed.

    Args:
        environ: environment variables with the settings of the servers.
        accounts: accounts of a run. They show whether the run was sent although ``environ``
            contains no endpoint.
    """
    checks: list[Check] = []
    reached: dict[str, SignalSettings] = {}
    tried: dict[str, list[Check]] = {}
    for signal in _SIGNALS:
        settings, warnings = read_settings(environ, signal)
        checks += [Check("warn", "settings", warning) for warning in warnings]
        if settings is None:
            is_sent = _OTLP in (accounts or {}).get(_ACCOUNTS[signal], {})
            checks.append(Check("ok", signal, _SENT if is_sent else _UNSENT))
            continue
        url = urlsplit(settings.endpoint)
        server = f"{url.scheme}://{url.netloc}"
        # Both signals are usually sent to one server: check and report each stage only once.
        if server not in tried:
            tried[server] = check_connection(settings)
            checks += tried[server]
        if all(check.level != "FAIL" for check in tried[server]):
            checks.append(check_otlp(settings))
            if checks[-1].level != "FAIL":
                reached[signal] = settings
    return _once(checks), reached


def check_connection(settings: SignalSettings) -> list[Check]:
    """Check DNS, TCP and TLS of a server; the first failure ends the checks."""
    url = urlsplit(settings.endpoint)
    host, secure = url.hostname or "", url.scheme == "https"
    port = url.port or (443 if secure else 80)
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        return [
            Check("FAIL", "dns", f"{host}: {error.strerror}", "check the host name of the endpoint")
        ]
    checks = [Check("ok", "dns", f"{host} resolves to {address}")]
    try:
        with socket.create_connection((host, port), _PATIENCE_S) as connection:
            checks.append(Check("ok", "tcp", f"{host}:{port} answers"))
            if secure:
                checks.append(_check_tls(connection, host, settings))
    except OSError as error:
        found = f"{host}:{port}: {error.strerror or 'no answer'}"
        hint = _port_hint(settings) or "start the server, or correct the endpoint"
        checks.append(Check("FAIL", "tcp", found, hint))
    return checks


def _check_tls(connection: socket.socket, host: str, settings: SignalSettings) -> Check:
    try:
        context = ssl.create_default_context(cafile=settings.certificate)
        if settings.client_certificate:
            context.load_cert_chain(settings.client_certificate, settings.client_key)
        with context.wrap_socket(connection, server_hostname=host) as secured:
            return Check("ok", "tls", f"{secured.version()}, certificate valid for {host}")
    except ssl.SSLCertVerificationError as error:
        advice = "set OTEL_EXPORTER_OTLP_CERTIFICATE to the certificate of the server's authority"
        return Check("FAIL", "tls", error.verify_message, advice)
    except OSError as error:
        advice = "check that the server uses TLS; without TLS, set http:// instead of https://"
        return Check("FAIL", "tls", error.strerror or str(error), advice)


def check_otlp(settings: SignalSettings) -> Check:
    """Check whether a server accepts an empty request of one OTLP signal."""
    # An empty body is a valid request without items: the server stores nothing.
    client = open_client(settings)
    answer = client.post(b"")
    client.close()
    check_name = f"otlp {settings.signal}"
    if answer.outcome is Outcome.DELIVERED:
        return Check("ok", check_name, f"{settings.endpoint} accepts {settings.signal}")
    found, _, advice = answer.reason.partition(": check ")
    is_unknown = settings.signal == "metrics" and found.endswith(
        ("answered 404", ": UNIMPLEMENTED")
    )
    hint = _port_hint(settings) or (_TRACES_ALONE if is_unknown else "")
    return Check("FAIL", check_name, found, hint or (f"check {advice}" if advice else _LOG))


def _port_hint(settings: SignalSettings) -> str:
    url = urlsplit(settings.endpoint)
    return port_hint(f"{url.scheme}://{url.netloc}", is_grpc=settings.is_grpc)


def _once(checks: list[Check]) -> list[Check]:
    return list(dict.fromkeys(checks))


def check_backends(
    environ: Mapping[str, str], reached: Mapping[str, SignalSettings]
) -> list[Check]:
    """Send a test span and a test metric, and query Jaeger and Prometheus for both.

    Args:
        environ: environment variables with the URLs of Jaeger and Prometheus.
        reached: settings by OTLP signal, only for signals whose server accepts requests.
    """
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
        # The value is unique, and exact as a double: a match can only be this point.
        value = float(time.time_ns() // 1_000_000)
        query = quote(f"{names.DOCTOR_CHECK.prometheus} == {value:.0f}")
        query_url = f"{prometheus}/api/v1/query?query={query}"
        checks.append(
            _round_trip(
                "prometheus", prometheus, reached["metrics"], _metric(value),
                lambda: bool(_answer(query_url)["data"]["result"]),
            )
        )  # fmt: skip
    return checks


def _round_trip(
    backend: str, url: str, settings: SignalSettings, body: bytes, arrived: Callable[[], bool]
) -> Check:
    # Query before sending: a default address where no server responds must not be a failure.
    try:
        arrived()
    except (OSError, ValueError, KeyError):
        variable = JAEGER_VARIABLE if backend == "jaeger" else PROMETHEUS_VARIABLE
        return Check("ok", backend, f"not found at {url}: set {variable} to the URL of {backend}")
    client = open_client(settings)
    answer = client.post(body)
    client.close()
    item = "span" if settings.signal == "traces" else "metric"
    if answer.outcome is not Outcome.DELIVERED or answer.rejected:
        return Check("FAIL", backend, f"the test {item} was rejected: {answer.reason}", _LOG)
    # Poll: collectors send in batches, and Prometheus scrapes in intervals.
    sent_s = time.monotonic()
    while time.monotonic() < sent_s + _ARRIVES_WITHIN_S:
        if _has_arrived(arrived):
            seconds = time.monotonic() - sent_s
            return Check("ok", backend, f"the test {item} was found at {url} after {seconds:.1f} s")
        time.sleep(_LOOK_EVERY_S)
    found = (
        f"the test {item} sent to {settings.endpoint} was not found at {url} within "
        f"{_ARRIVES_WITHIN_S:.0f} s"
    )
    return Check(
        "FAIL",
        backend,
        found,
        "check that the Collector exports to this address; read the Collector's log",
    )


def _has_arrived(arrived: Callable[[], bool]) -> bool:
    try:
        return arrived()
    except (OSError, ValueError, KeyError):  # the server has responded before: retry
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
    return encode_spans(_resource(), OWN_SCOPE.encode(), columns, names.SCHEMA_URL)


def _metric(value: float) -> bytes:
    point = NumberPoint(attributes={}, time_ns=time.time_ns(), value=value)
    metric = names.DOCTOR_CHECK
    data = MetricData(metric.name, metric.unit, metric.meaning, GaugePoints([point]))
    return encode_metrics(_resource(), OWN_SCOPE.encode(), [data], names.SCHEMA_URL)


def _resource() -> bytes:
    return wire.encode_resource(names.SDK | {names.SERVICE_NAME: names.SERVICE_DOCTOR})
