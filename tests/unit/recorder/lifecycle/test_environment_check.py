"""Settings without effect are reported at the start."""

from __future__ import annotations

import pytest

import otel_mlperf as om
from otel_mlperf.recorder.core import faults
from otel_mlperf.settings.standard_variables import STANDARD, describe_unused

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


@pytest.mark.fault("F60")
@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("OTEL_MLPERF_TRACE_EVRY", "did you mean OTEL_MLPERF_TRACE_EVERY?"),
        ("OTEL_MLPERF_9", "see help(otel_mlperf.Config)"),
    ],
)
def test_unknown_variable(start, monkeypatch, said, variable, hint):
    """A variable that is not known is said once, with the nearest one that is."""
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("OTEL_MLPERF_REQUIRE_SERVERS", "1")
    for _ in range(2):
        start()
        om.stop()

    assert said() == [f"{variable} is unknown and has no effect; {hint}"]


@pytest.mark.fault("F60")
@pytest.mark.parametrize("text", ["localhost:4318", "http://", "ftp://x", "http://x:port", "a b"])
@pytest.mark.parametrize("variable", [ENDPOINT, ENDPOINT.replace("OTLP", "OTLP_TRACES")])
def test_endpoint_that_is_no_url(start, monkeypatch, said, variable, text):
    """A variable that names no place is said at the start, with an example; an argument raises."""
    monkeypatch.setenv(variable, text)
    start()

    (message,) = said()
    assert message.startswith(f"{variable}: found {text!r}, expected a URL like http://localhost")
    om.stop()
    monkeypatch.delenv(variable)
    with pytest.raises(om.ConfigError, match="endpoint: found"):
        start(endpoint=text)


@pytest.mark.fault("S8")
def test_no_secret_is_said(start, monkeypatch, said):
    """Neither a login nor a query of an endpoint is shown."""
    monkeypatch.setenv(ENDPOINT, "me:secret@host?key=secret")
    start()
    om.stop()
    faults._said.clear()
    monkeypatch.setenv(ENDPOINT, "http://me:secret@host:4317?key=secret")
    start()

    assert len(said()) == 3  # no URL; gRPC's port; a login that is not sent in the open
    assert not any("secret" in text for text in said())


def test_port_of_grpc(start, monkeypatch, said):
    """Port 4317 is said, with the URL to use instead."""
    monkeypatch.setenv(ENDPOINT, "http://localhost:4317")
    start()
    om.stop()
    start(endpoint="http://node7:4317")

    advice = "port 4317 uses grpc, but the protocol is http/protobuf: use http://{}:4318 or {}=grpc"
    assert said() == [
        f"{ENDPOINT}: {advice.format('localhost', PROTOCOL)}",
        f"endpoint: {advice.format('node7', PROTOCOL)}",
    ]


def test_endpoint_of_grpc_needs_no_scheme(start, monkeypatch, said):
    """Neither as a variable nor as an argument."""
    monkeypatch.setenv(PROTOCOL, "grpc")
    monkeypatch.setenv(ENDPOINT, "otel:4317")
    start()
    om.stop()
    start(endpoint="node7:4317")

    assert said() == []


@pytest.mark.parametrize("text", ["http://localhost:4318", "https://[::1]/otlp"])
def test_right_endpoint(start, said, text):
    """A URL with a host is nothing to speak of."""
    start(endpoint=text)

    assert said() == []


@pytest.mark.parametrize(
    ("variable", "value", "warning"),
    [
        (PROTOCOL, "http/jsn", "only http/protobuf and grpc are supported"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret", "header 1 is not of the form name=value"),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "soon", "expected at least "),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often", "100; using 15000"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "9", "limits spans to 64 attributes"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "'parentbased_traceidratio'; using ''"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5", "using 1.0"),
        (
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
            "none",
            "cumulative metrics are used",
        ),
    ],
)
def test_standard_variable_that_the_agent_cannot_use(
    start, monkeypatch, said, variable, value, warning
):
    """It is said where the user looks, not only in the agent's log, and never with a header."""
    monkeypatch.setenv(ENDPOINT, "http://localhost:4318")
    monkeypatch.setenv(variable, value)
    start()

    (message,) = said()
    assert message.startswith(variable)
    assert warning in message
    assert "secret" not in message


def test_standard_variables_that_are_not_used_are_named_in_one_warning(start, monkeypatch, said):
    """Each with what to use instead; those that are obeyed are not among them."""
    monkeypatch.setenv("OTEL_LOG_LEVEL", "debug")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "service")
    start()

    (message,) = said()
    assert message.startswith(
        "set, but not used by otel_mlperf: OTEL_BSP_SCHEDULE_DELAY (the agent sends"
    )
    assert "OTEL_LOG_LEVEL (" in message
    assert "OTEL_SERVICE_NAME" not in message


@pytest.mark.parametrize(
    "name", [n for variable in STANDARD if not variable.is_used for n in variable.names]
)
def test_each_unused_variable_is_named(name):
    """It is said that it means nothing, and what to use."""
    assert describe_unused({name: "1"}).startswith(f"set, but not used by otel_mlperf: {name} (")


def test_variables_that_are_used_are_not_said_to_be_unused():
    """Nor is an empty one."""
    used = {n: "1" for variable in STANDARD if variable.is_used for n in variable.names}
    assert describe_unused(used | {"OTEL_LOG_LEVEL": ""}) == ""
