"""The client accepts only a valid answer of the server, whatever the server does."""

from __future__ import annotations

import gzip

import pytest
from otlp_requests import metrics, spans

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.endpoint_settings import SignalSettings
from otel_mlperf.otlp.http_client import Client, Outcome, ServerAnswer

NOW = 1_700_000_000.0
CANARY = "SECRET_CANARY_2e"


@pytest.mark.parametrize("packed", [True, False])
def test_spans_arrive(server, client_of, packed):
    """A request is delivered, compressed unless switched off, and nothing asks for compression."""
    client = client_of(server, gzip=packed, headers={"x-key": "v"})

    answer = client.post(spans(3))

    request = server.requests()[-1]
    assert answer == ServerAnswer(Outcome.DELIVERED)
    assert [span["span_id"][-1] for span in request["spans"]] == ["1", "2", "3"]
    assert request["headers"].get("content-encoding") == ("gzip" if packed else None)
    assert request["headers"]["content-type"] == "application/x-protobuf"
    assert request["headers"]["accept-encoding"] == "identity"
    assert request["headers"]["x-key"] == "v"


def test_metrics_arrive(server, client_of):
    """The other signal goes to its own path."""
    assert client_of(server, "metrics").post(metrics()) == ServerAnswer(Outcome.DELIVERED)

    assert server.requests()[-1]["path"] == "/v1/metrics"
    assert server.requests()[-1]["points"][0]["value"] == 0.5


@pytest.mark.fault("F06")
@pytest.mark.parametrize(("signal", "body"), [("traces", spans(5)), ("metrics", metrics())])
def test_partial_success_is_counted(server, client_of, signal, body):
    """What a server took only in part is delivered less what it says it rejected."""
    server.mode("partial", rejected=3, message="too\x1b[31m old" + "!" * 500)

    answer = client_of(server, signal).post(body)

    assert (answer.outcome, answer.rejected) == (Outcome.DELIVERED, 3)
    assert answer.reason.startswith("too [31m old!!!")
    assert len(answer.reason) == 200


@pytest.mark.fault("F04", "F05", "F07", "S13")
@pytest.mark.parametrize(
    ("code", "outcome", "told"),
    [
        (
            301,
            Outcome.RETRY,
            "redirects are not followed; set the endpoint to the target of the redirect",
        ),
        (
            307,
            Outcome.RETRY,
            "redirects are not followed; set the endpoint to the target of the redirect",
        ),
        (400, Outcome.REJECTED, "went wrong"),
        (401, Outcome.UNAUTHORIZED, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (403, Outcome.UNAUTHORIZED, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (404, Outcome.RETRY, "check the path of the endpoint"),
        (413, Outcome.TOO_LARGE, "went wrong"),
        (415, Outcome.RETRY, "went wrong"),
        (422, Outcome.REJECTED, "went wrong"),
        (429, Outcome.RETRY, "went wrong"),
        (500, Outcome.RETRY, "went wrong"),
        (503, Outcome.RETRY, "went wrong"),
    ],
)
def test_every_status_says_what_to_do(server, client_of, code, outcome, told):
    """A refusal is sorted by what helps against it, in words that name endpoint and status."""
    headers = {"Location": f"{server.url}/elsewhere", "Content-Type": "text/plain"}
    server.mode("status", code=code, body="went wrong", headers=headers)
    before = len(server.requests())

    answer = client_of(server).post(spans())

    assert answer.outcome is outcome
    assert answer.reason.startswith(f"{server.url}/v1/traces answered {code}: ")
    assert told in answer.reason
    assert len(server.requests()) == before + 1


def test_a_status_message_is_read_from_protobuf(server, client_of):
    """Collectors say what they disliked in a google.rpc.Status."""
    body = (wire.number(1, 3) + wire.text(2, "invalid trace id")).decode()
    server.mode("status", code=400, body=body, headers={"Content-Type": "application/x-protobuf"})

    answer = client_of(server).post(spans())

    assert answer.reason == f"{server.url}/v1/traces answered 400: invalid trace id"


@pytest.mark.fault("F04")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("3600", 60.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:10 GMT", 0.0),
        ("Wed, 14 Nov 2040 22:13:10 GMT", 60.0),
        ("soon", None),
        ("-5", None),
        ("9" * 400, 60.0),
        ("9" * 5000, None),
        (None, None),
    ],
)
def test_retry_after_is_read(server, client_of, value, seconds):
    """Seconds and dates are honoured up to a minute; anything else is as if not said."""
    headers = {} if value is None else {"Retry-After": value}
    server.mode("status", code=503, headers={"Content-Type": "text/plain", **headers})

    assert client_of(server).post(spans()).after_s == seconds


@pytest.mark.fault("F08", "S13")
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("garbage", {"body": "OK"}),
        ("garbage", {"body": "<html>hello</html>"}),
        ("garbage", {"body": "{}"}),
        ("bomb", {}),
        ("huge", {"bytes": 1 << 26}),
    ],
)
def test_a_good_status_with_a_strange_body_is_no_delivery(server, client_of, mode, options):
    """A proxy's page, a compressed or an endless answer is a failure, and is not read on."""
    server.mode(mode, **options)
    client = client_of(server)

    answer = client.post(spans())

    assert answer.outcome is Outcome.RETRY
    assert "answered 200, but not with OTLP" in answer.reason
    server.mode("ok")
    assert client.post(spans()).outcome is Outcome.DELIVERED


def test_the_port_of_grpc_is_explained():
    """A server that does not speak HTTP on 4317 leads to the port that does."""
    endpoint = "http://127.0.0.1:4317/v1/traces"
    settings = SignalSettings(signal="traces", endpoint=endpoint, timeout_s=1)

    answer = Client(settings).post(spans())

    hint = (
        "port 4317 uses grpc, but the protocol is http/protobuf: use "
        "http://127.0.0.1:4318/v1/traces"
    )
    assert answer.outcome is Outcome.RETRY
    assert hint in answer.reason


@pytest.mark.fault("S8")
def test_an_echoed_secret_is_not_repeated(server, client_of):
    """A server that quotes our headers in its refusal does not put them into our logs."""
    server.mode(
        "status",
        code=401,
        body=f"no such token: {CANARY}, nor key3={CANARY}q",
        headers={"Content-Type": "text/plain"},
    )
    client = client_of(
        server, headers={"authorization": f"Bearer {CANARY}"}, query=f"key3={CANARY}q"
    )
    answer = client.post(spans())

    assert CANARY not in answer.reason
    assert "no such token: ***" in answer.reason
    assert server.requests()[-1]["path"] == f"/v1/traces?key3={CANARY}q"


def test_an_unusable_header_is_a_retry(server, client_of):
    """Settings that were not made by reading variables cannot make the client raise either."""
    assert client_of(server, headers={"x": "a\r\nb: c"}).post(spans()).outcome is Outcome.RETRY


def test_gzip_is_the_same_for_the_same_request(server, client_of):
    """A retry sends the bytes that it sent before."""
    client = client_of(server)
    for _ in range(2):
        client.post(spans())

    first, second = server.requests()[-2:]
    assert first["bytes"] == second["bytes"] == len(gzip.compress(spans(), 1))
