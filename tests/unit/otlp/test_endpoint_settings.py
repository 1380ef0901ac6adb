"""The standard variables mean what the OpenTelemetry specification defines."""

from __future__ import annotations

import sys

import pytest

from otel_mlperf.otlp.endpoint_settings import (
    MetricSettings,
    SignalSettings,
    read_exporters,
    read_metric_settings,
    read_settings,
)

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
CANARY = "SECRET_CANARY_1f"


def traces(**variables: str) -> SignalSettings:
    """Settings of traces, with an endpoint, that nothing is wrong with."""
    settings, warnings = read_settings({ENDPOINT: "http://localhost:4318"} | variables, "traces")
    assert warnings == []
    assert settings is not None
    return settings


def warned(**variables: str) -> tuple[SignalSettings | None, str]:
    """Settings of traces, with an endpoint, that one thing is wrong with."""
    environ = {ENDPOINT: "http://localhost:4318"} | variables
    settings, (warning,) = read_settings(environ, "traces")
    return settings, warning


def test_nothing_set_sends_nothing():
    """Without an endpoint there is no destination, and nothing to warn of."""
    assert read_settings({}, "traces") == (None, [])
    assert read_settings({ENDPOINT: "  "}, "metrics") == (None, [])


def test_defaults():
    """An endpoint alone gives gzip, ten seconds and no headers."""
    assert traces() == SignalSettings(
        signal="traces",
        endpoint="http://localhost:4318/v1/traces",
        headers={},
        timeout_s=10.0,
        gzip=True,
    )


@pytest.mark.parametrize(
    ("variables", "signal", "expected"),
    [
        ({ENDPOINT: "https://otel.example"}, "metrics", "https://otel.example/v1/metrics"),
        ({ENDPOINT: "https://otel.example/"}, "traces", "https://otel.example/v1/traces"),
        ({ENDPOINT: "https://otel.example/otlp/"}, "traces", "https://otel.example/otlp/v1/traces"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://t.example/api/x"},
            "traces",
            "https://t.example/api/x",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://t.example", ENDPOINT: "http://g"},
            "traces",
            "https://t.example/",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://t.example", ENDPOINT: "http://g"},
            "metrics",
            "http://g/v1/metrics",
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "traces", "http://localhost:4318/v1/traces"),
        ({ENDPOINT: "http://[::1]:9999"}, "traces", "http://[::1]:9999/v1/traces"),
    ],
)
def test_endpoints(variables, signal, expected):
    """The general endpoint gets the signal's path; the signal's own is used as it is."""
    settings, warnings = read_settings(variables, signal)

    assert warnings == []
    assert settings is not None
    assert settings.endpoint == expected


def test_an_explicit_endpoint_beats_the_environment():
    """What a command was told to send to is where it sends."""
    environ = {ENDPOINT: "http://g", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t"}
    settings, _ = read_settings(environ, "traces", "https://here.example")

    assert settings is not None
    assert settings.endpoint == "https://here.example/v1/traces"


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_an_exporter_of_none_sends_nothing(signal):
    """OTEL_TRACES_EXPORTER=none switches one signal off and leaves the other."""
    environ = {ENDPOINT: "http://g", f"OTEL_{signal.upper()}_EXPORTER": "none"}
    other = "metrics" if signal == "traces" else "traces"

    assert read_settings(environ, signal) == (None, [])
    assert read_settings(environ, other)[0] is not None


@pytest.mark.fault("F60")
@pytest.mark.parametrize(
    "bad", ["localhost:4318", "ftp://x", "http://", "http://[::bad", "http://h:99999", "http://a b"]
)
def test_a_bad_endpoint_is_named_and_sends_nothing(bad):
    """What is no URL costs no exception: nothing is sent and the variable is named."""
    settings, warning = warned(**{ENDPOINT: bad})

    assert settings is None
    assert warning.startswith(f"{ENDPOINT}={bad} is not a URL like http://localhost:4318")


def test_the_port_of_grpc_is_pointed_out():
    """The most common mistake gets the answer in the warning."""
    settings, warning = warned(**{ENDPOINT: "http://localhost:4317"})

    assert settings is not None
    assert warning == (
        f"{ENDPOINT}: port 4317 uses grpc, but the protocol is http/protobuf: use "
        "http://localhost:4318 or OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
    )


GRPC = {"OTEL_EXPORTER_OTLP_PROTOCOL": "gRPC"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({ENDPOINT: "http://otel:4317"}, "http://otel:4317"),
        ({ENDPOINT: "http://otel:4317/v1/traces?a=b#c"}, "http://otel:4317"),
        ({ENDPOINT: "http://otel"}, "http://otel:4317"),
        ({ENDPOINT: "https://otel.example"}, "https://otel.example:443"),
        ({ENDPOINT: "https://otel:1", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, "https://otel:1"),
        ({ENDPOINT: "otel:4317"}, "https://otel:4317"),
        ({ENDPOINT: "otel:4317", "OTEL_EXPORTER_OTLP_INSECURE": "TRUE"}, "http://otel:4317"),
        ({ENDPOINT: "[::1]:4317", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, "http://[::1]:4317"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:1/x", ENDPOINT: "http://g:1"},
            "http://t:1",
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4317"),
    ],
)
def test_endpoints_of_grpc(variables, expected):
    """A scheme decides on TLS, ..._INSECURE where there is none; a path means nothing."""
    settings, warnings = read_settings(GRPC | variables, "traces")

    assert warnings == []
    assert settings is not None
    assert (settings.is_grpc, settings.endpoint, settings.query) == (True, expected, "")


@pytest.mark.parametrize("bad", ["ftp://x", "http://", "otel:99999", "unix:/run/otel.sock", "a b"])
def test_a_bad_endpoint_of_grpc_is_named_and_sends_nothing(bad):
    """The example has the port of gRPC."""
    settings, warning = warned(**GRPC, **{ENDPOINT: bad})

    assert settings is None
    assert warning.startswith(f"{ENDPOINT}={bad} is not a URL like http://localhost:4317")


def test_each_signal_has_a_protocol_of_its_own():
    """Traces by gRPC, metrics by HTTP, as collectors without one of them need it."""
    environ = {ENDPOINT: "http://otel:1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}
    traces_, metrics_ = (read_settings(environ, signal)[0] for signal in ("traces", "metrics"))

    assert (traces_.is_grpc, traces_.endpoint) == (True, "http://otel:1")
    assert (metrics_.is_grpc, metrics_.endpoint) == (False, "http://otel:1/v1/metrics")


def test_the_port_of_http_is_pointed_out_to_grpc():
    """The same mistake the other way round."""
    _, warning = warned(**GRPC)

    assert warning == (
        f"{ENDPOINT}: port 4318 uses http/protobuf, but the protocol is grpc: use "
        "http://localhost:4317 or OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
    )


def test_without_grpcio_it_is_said_what_to_install(monkeypatch):
    """Before anything waits for it."""
    monkeypatch.setitem(sys.modules, "grpc", None)
    settings, warning = warned(**GRPC, **{ENDPOINT: "http://otel:4317"})

    assert settings.is_grpc
    assert warning == (
        "OTEL_EXPORTER_OTLP_PROTOCOL=grpc: grpcio is not installed: unsent data stays in the run "
        "folder; pip install grpcio, or set http/protobuf"
    )


@pytest.mark.fault("F60")
@pytest.mark.parametrize(
    ("name", "bad", "field", "default"),
    [
        ("PROTOCOL", "http/json", "endpoint", "http://localhost:4318/v1/traces"),
        ("COMPRESSION", "zstd", "gzip", True),
        ("TIMEOUT", "abc", "timeout_s", 10.0),
        ("TIMEOUT", "-1", "timeout_s", 10.0),
        ("TIMEOUT", "nan", "timeout_s", 10.0),
        ("TIMEOUT", "10", "timeout_s", 10.0),
        ("HEADERS", f"a{CANARY}", "headers", {}),
        ("HEADERS", f"a b={CANARY}", "headers", {}),
        ("HEADERS", f"a={CANARY}%0d%0ax: y", "headers", {}),
        ("CERTIFICATE", "/nowhere/ca.pem", "certificate", "/nowhere/ca.pem"),
    ],
)
@pytest.mark.parametrize("own", ["", "TRACES_"])
def test_a_bad_value_warns_and_the_default_holds(name, bad, field, default, own):
    """The variable at fault is named, the rest works, and no secret is repeated."""
    variable = f"OTEL_EXPORTER_OTLP_{own}{name}"
    settings, warning = warned(**{variable: bad})

    assert getattr(settings, field) == default
    assert warning.startswith(variable)
    assert CANARY not in warning


def test_nothing_is_sent_by_otlp_that_was_not_asked_for():
    """Where exporters are listed, OTLP among them or not, the list decides."""
    for listed, is_sent in (("console", False), ("OTLP, console", True), ("None", False)):
        environ = {ENDPOINT: "http://localhost:4318", "OTEL_TRACES_EXPORTER": listed}
        settings, warnings = read_settings(environ, "traces")
        assert (settings is not None, warnings) == (is_sent, [])
        assert read_exporters(environ, "traces") == ["console"] * ("console" in listed)


def test_exporter_that_is_not_installed_is_named_once():
    """With those that are; its signal does not go by OTLP in its place."""
    settings, warning = warned(OTEL_TRACES_EXPORTER="nope, console")
    assert settings is None
    assert warning.startswith(
        "OTEL_TRACES_EXPORTER: no exporter nope is installed: traces for this exporter "
    )
    assert "available: console, otlp, otlp_proto_grpc" in warning
    assert warning.endswith("; pip install opentelemetry-exporter-nope")


def test_words_are_read_in_any_case():
    """As the specification asks of values that name one of several."""
    found = traces(
        OTEL_EXPORTER_OTLP_COMPRESSION="NONE", OTEL_EXPORTER_OTLP_PROTOCOL="HTTP/Protobuf"
    )
    assert not found.gzip


def test_the_signals_own_variables_win(tmp_path):
    """Each setting can differ between traces and metrics."""
    general, own = {}, {}
    for name, one, other in (
        ("HEADERS", "a=1,b=2", "A=3"),
        ("TIMEOUT", "20000", "500"),
        ("COMPRESSION", "gzip", "none"),
    ):
        general[f"OTEL_EXPORTER_OTLP_{name}"] = one
        own[f"OTEL_EXPORTER_OTLP_TRACES_{name}"] = other

    found = [
        (settings.headers, settings.timeout_s, settings.gzip)
        for settings in (traces(**general), traces(**general, **own))
    ]
    assert found == [({"a": "1", "b": "2"}, 20.0, True), ({"a": "3"}, 0.5, False)]


def test_header_values_are_decoded():
    """Values are percent-encoded, may hold an equals sign, and spaces around are not theirs."""
    settings = traces(OTEL_EXPORTER_OTLP_HEADERS="Authorization=Basic%20YQ==, x = 1 ,")

    assert settings.headers == {"authorization": "Basic YQ==", "x": "1"}


@pytest.mark.parametrize(
    "name", ["content-length", "Transfer-Encoding", "HOST", "connection", "content-type"]
)
def test_a_header_that_frames_requests_is_refused(name):
    """The server would read another request than the one that is sent, and answer that."""
    settings, warnings = warned(**{
        ENDPOINT: "http://localhost:4318", "OTEL_EXPORTER_OTLP_HEADERS": f"a=1,{name}=0",
    })  # fmt: skip

    assert settings.headers == {"a": "1"}
    assert f"header {name.lower()} describes the request itself" in warnings


@pytest.mark.fault("S8")
def test_a_login_in_the_url_becomes_a_header_that_is_never_shown():
    """Login, query and header values reach the server alone: no repr and no warning has them."""
    variables = {
        ENDPOINT: f"https://me:{CANARY}@otel.example/x",
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={CANARY}",
    }
    settings = traces(**variables)

    assert settings.endpoint == "https://otel.example/x/v1/traces"
    assert settings.headers["authorization"].startswith("Basic bWU6U0VD")
    assert CANARY not in repr(settings)
    assert "bWU6U0VD" not in repr(settings)
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"https://t.example/in?key={CANARY}"}
    assert traces(**own).query == f"key={CANARY}"
    assert CANARY not in repr(traces(**own))
    for bad in (f"me:{CANARY}@otel:4318", f"ftp://me:{CANARY}@otel?key={CANARY}"):
        assert CANARY not in warned(**{ENDPOINT: bad})[1]


@pytest.mark.fault("S6", "S8")
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize(
    ("endpoint", "insecure", "kept"),
    [
        ("https://otel.example", "", True),
        ("http://localhost:1", "", True),
        ("http://127.0.0.1:1", "", True),
        ("http://[::1]:1", "", True),
        ("http://otel.example:1", "true", True),
        ("http://otel.example:1", "", False),
        ("http://10.0.0.1:1", "false", False),
    ],
)
def test_headers_do_not_cross_the_network_in_the_clear(endpoint, insecure, kept, protocol):
    """A secret leaves the machine over TLS, or where somebody said that plain http is fine."""
    settings, warnings = read_settings(
        {
            ENDPOINT: endpoint,
            "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={CANARY}",
            "OTEL_EXPORTER_OTLP_INSECURE": insecure,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        },
        "traces",
    )

    assert settings is not None
    assert bool(settings.headers) == kept
    assert len(warnings) == (not kept)
    assert CANARY not in str(warnings)


@pytest.mark.fault("S7")
def test_a_client_key_that_others_can_read_is_pointed_out(tmp_path):
    """A private key with loose permissions is used, with a warning."""
    key = tmp_path / "key.pem"
    key.touch(mode=0o600)
    variable = "OTEL_EXPORTER_OTLP_CLIENT_KEY"
    assert traces(**{variable: str(key)}).client_key == str(key)

    key.chmod(0o644)

    assert (
        warned(**{variable: str(key)})[1]
        == f"{variable}={key} is readable for other users: chmod 600 {key}"
    )


@pytest.mark.parametrize(
    ("variables", "expected", "warnings"),
    [
        ({}, MetricSettings(), 0),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "2500"}, MetricSettings(interval_s=2.5), 0),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "soon"}, MetricSettings(), 1),
        (
            {
                "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": (
                    "explicit_bucket_histogram"
                )
            },
            MetricSettings(explicit_buckets=True),
            0,
        ),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "linear"},
            MetricSettings(),
            1,
        ),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "cumulative"},
            MetricSettings(),
            0,
        ),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "Delta"},
            MetricSettings(temporality="delta"),
            0,
        ),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "low_memory"},
            MetricSettings(temporality="lowmemory"),
            0,
        ),
        ({"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "none"}, MetricSettings(), 1),
        ({"OTEL_METRICS_EXEMPLAR_FILTER": "Always_off"}, MetricSettings(exemplars=False), 0),
        ({"OTEL_METRICS_EXEMPLAR_FILTER": "trace_based"}, MetricSettings(), 0),
        ({"OTEL_METRICS_EXEMPLAR_FILTER": "always_on"}, MetricSettings(), 1),
    ],
)
def test_metric_variables(variables, expected, warnings):
    """Buckets and interval follow their variables; what we cannot do is said."""
    settings, found = read_metric_settings(variables)

    assert settings == expected
    assert len(found) == warnings
    assert all(warning.startswith(tuple(variables)) for warning in found)
