"""Does the client believe the server's answer, and nothing else, whatever the server does?"""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fault_server import FaultServer
from servers.running import wait_until

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.client import Answer, Client, Outcome
from otel_mlperf.otlp.endpoint_settings import Signal, SignalSettings
from otel_mlperf.otlp.metric_encoding import Gauge, MetricData, NumberPoint, encode_metrics
from otel_mlperf.otlp.span_encoding import SpanColumns, encode_spans, span_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOW = 1_700_000_000.0
CANARY = "SECRET_CANARY_2e"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    """One server for all tests here that leave it alive."""
    with FaultServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(shared: FaultServer) -> FaultServer:
    """The server, behaving."""
    shared.mode("ok")
    return shared


@pytest.fixture
def client_of() -> Iterator[Callable[..., Client]]:
    """Makes clients of a server and closes them."""
    made: list[Client] = []

    def make(server: FaultServer, signal: Signal = "traces", **changes: Any) -> Client:
        settings = SignalSettings(signal=signal, endpoint=f"{server.url}/v1/{signal}")
        made.append(Client(replace(settings, **changes), now=lambda: NOW))
        return made[-1]

    yield make
    for client in made:
        client.close()


def spans(count: int = 1, padding: int = 0) -> bytes:
    """A request of ``count`` spans with ids 1, 2 and so on."""
    ids = np.arange(1, count + 1, dtype=np.uint64)
    columns = SpanColumns(
        trace_id=np.ones((count, 16), np.uint8),
        span_id=ids,
        parent_id=ids - 1,
        start_ns=ids,
        end_ns=ids + 1,
        tail=np.zeros(count, np.int32),
        tails=[span_tail("forward", {"padding": "x" * padding})],
    )
    return encode_spans(wire.encode_resource({}), wire.encode_scope("otel_mlperf"), columns)


def metrics() -> bytes:
    """A request of one point."""
    data = Gauge([NumberPoint(attributes={}, time_ns=1, value=0.5)])
    metric = MetricData("ml.training.loss", "", "", data)
    return encode_metrics(wire.encode_resource({}), wire.encode_scope("otel_mlperf"), [metric])


@pytest.mark.parametrize("packed", [True, False])
def test_spans_arrive(server, client_of, packed):
    """A request is delivered, compressed unless switched off, and nothing asks for compression."""
    client = client_of(server, gzip=packed, headers={"x-key": "v"})

    answer = client.post(spans(3))

    request = server.requests()[-1]
    assert answer == Answer(Outcome.DELIVERED)
    assert [span["span_id"][-1] for span in request["spans"]] == ["1", "2", "3"]
    assert request["headers"].get("content-encoding") == ("gzip" if packed else None)
    assert request["headers"]["content-type"] == "application/x-protobuf"
    assert request["headers"]["accept-encoding"] == "identity"
    assert request["headers"]["x-key"] == "v"


def test_metrics_arrive(server, client_of):
    """The other signal goes to its own path."""
    assert client_of(server, "metrics").post(metrics()) == Answer(Outcome.DELIVERED)

    assert server.requests()[-1]["path"] == "/v1/metrics"
    assert server.requests()[-1]["points"][0]["value"] == 0.5


@pytest.mark.parametrize(("signal", "body"), [("traces", spans(5)), ("metrics", metrics())])
def test_partial_success_is_counted(server, client_of, signal, body):
    """What a server took only in part is delivered less what it says it rejected."""
    server.mode("partial", rejected=3, message="too\x1b[31m old" + "!" * 500)

    answer = client_of(server, signal).post(body)

    assert (answer.outcome, answer.rejected) == (Outcome.DELIVERED, 3)
    assert answer.reason.startswith("too [31m old!!!")
    assert len(answer.reason) == 200


@pytest.mark.parametrize(
    ("code", "outcome", "told"),
    [
        (301, Outcome.RETRY, "redirects are not followed, set the endpoint to where it leads"),
        (307, Outcome.RETRY, "redirects are not followed, set the endpoint to where it leads"),
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
    assert "answered 200 with something that is no OTLP" in answer.reason
    server.mode("ok")
    assert client.post(spans()).outcome is Outcome.DELIVERED


def test_an_endless_refusal_keeps_its_meaning(server, client_of):
    """A 413 with a page of megabytes is still a 413."""
    server.mode("huge", bytes=1 << 26, code=413)

    answer = client_of(server).post(spans())

    assert answer.outcome is Outcome.TOO_LARGE
    assert len(answer.reason) < 400


def test_a_refusal_before_the_body_was_read_is_heard(server, client_of):
    """A server that answers 413 and hangs up at once is understood, not taken for a bad network."""
    server.mode("early", code=413)

    answer = client_of(server, gzip=False).post(spans(1, padding=200_000))

    assert answer.outcome is Outcome.TOO_LARGE


def test_a_dripping_server_meets_the_deadline(server, client_of):
    """Each byte comes in time, the whole answer does not: the deadline is for the whole."""
    server.mode("drip", every=0.05)

    answer = client_of(server, timeout_s=0.5).post(spans())

    assert answer.outcome is Outcome.RETRY
    assert answer.reason == f"{server.url}/v1/traces: no complete answer within 0.5 s"


def test_a_hanging_server_meets_the_deadline(server, client_of):
    """A server that takes a request and says nothing is given up."""
    server.mode("hang", times=1)
    client = client_of(server, timeout_s=0.3)

    assert client.post(spans()).outcome is Outcome.RETRY
    assert wait_until(lambda: client.post(spans()).outcome is Outcome.DELIVERED)


def test_a_server_that_takes_no_bytes_meets_the_deadline(client_of):
    """Sending into a full window ends, too."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        settings = SignalSettings(
            signal="traces", endpoint=f"http://127.0.0.1:{port}/", timeout_s=0.3, gzip=False
        )
        client = Client(settings)

        assert client.post(bytes(1 << 26)).reason.endswith("no complete answer within 0.3 s")


@pytest.mark.parametrize("mode", ["reset", "close"])
def test_a_lost_answer_is_a_retry_on_a_new_connection(server, client_of, mode):
    """A connection that dies costs one try, whether or not the server had taken the request."""
    client = client_of(server)
    client.post(spans())
    server.mode(mode, times=1, keep=True)
    before = len(server.spans())

    answers = [client.post(spans()).outcome for _ in range(2)]

    assert answers == [Outcome.RETRY, Outcome.DELIVERED]
    assert len(server.spans()) == before + 2


def test_a_server_that_restarted_between_requests_costs_nothing(tmp_path, client_of):
    """A kept connection that the server has closed is replaced before it is used."""
    with FaultServer(tmp_path) as server:
        client = client_of(server)
        first = client.post(spans())
        server.kill()
        down = client.post(spans())
        server.start()
        again = client.post(spans())

    assert [first.outcome, down.outcome, again.outcome] == [
        Outcome.DELIVERED,
        Outcome.RETRY,
        Outcome.DELIVERED,
    ]
    assert down.reason == f"{server.url}/v1/traces: Connection refused"
    assert len(server.spans()) == 2


def test_a_host_that_does_not_exist_is_a_retry():
    """A name that cannot be looked up is said, not raised."""
    settings = SignalSettings(signal="traces", endpoint="http://otel.invalid:4318/v1/traces")

    answer = Client(settings).post(spans())

    assert answer.outcome is Outcome.RETRY
    assert answer.reason.startswith("http://otel.invalid:4318/v1/traces: ")


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "ü" * 70])
def test_a_host_that_is_no_name_is_a_retry(host):
    """What cannot even be asked for is said, not raised."""
    settings = SignalSettings(signal="traces", endpoint=f"http://{host}:4318/v1/traces")

    assert Client(settings).post(spans()).outcome is Outcome.RETRY


def test_the_port_of_grpc_is_explained():
    """A server that does not speak HTTP on 4317 leads to the port that does."""
    endpoint = "http://127.0.0.1:4317/v1/traces"
    settings = SignalSettings(signal="traces", endpoint=endpoint, timeout_s=1)

    answer = Client(settings).post(spans())

    hint = "4317 speaks gRPC; you set http/protobuf: use http://127.0.0.1:4318/v1/traces"
    assert answer.outcome is Outcome.RETRY
    assert hint in answer.reason


def test_no_netrc_no_proxy(server, client_of, monkeypatch, tmp_path):
    """Files and variables that were meant for other programs change nothing."""
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine localhost login me password {CANARY}\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    answer = client_of(server, headers={"authorization": "Bearer right"}).post(spans())

    assert answer == Answer(Outcome.DELIVERED)
    assert server.requests()[-1]["headers"]["authorization"] == "Bearer right"


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


def test_answers_take_little_memory(server, client_of):
    """An answer of 64 MiB, or one that would unpack to 32, is not held in memory."""
    client = client_of(server)
    client.post(spans())
    before = resident()
    for mode, options in (("huge", {"bytes": 1 << 26}), ("bomb", {})):
        server.mode(mode, **options)
        client.post(spans())

    assert resident() - before < 4 << 20


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


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


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, a server certificate for localhost and another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("server", "other"):
        subprocess.run(
            f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {name}.key -out {name}.pem "
            "-subj /CN=localhost -addext subjectAltName=DNS:localhost".split(),
            cwd=folder,
            check=True,
            capture_output=True,
        )
    return folder


def test_tls_trusts_the_given_authority_alone(certificates, tmp_path, client_of):
    """Over TLS spans arrive where the certificate is trusted, and nothing is sent elsewhere."""
    pem, key = certificates / "server.pem", certificates / "server.key"
    with FaultServer(tmp_path, pem, key) as server:
        good = client_of(server, certificate=str(pem))
        answers = [good.post(spans()) for _ in range(2)]
        refused = [
            client_of(server, certificate=path).post(spans())
            for path in (str(certificates / "other.pem"), str(tmp_path / "missing.pem"), None)
        ]
        got = len(server.spans())

    assert answers == [Answer(Outcome.DELIVERED)] * 2
    assert [answer.outcome for answer in refused] == [Outcome.RETRY] * 3
    assert "certificate refused" in refused[0].reason
    assert "No such file" in refused[1].reason
    assert got == 2


def test_a_client_key_that_needs_a_password_asks_nobody(certificates, tmp_path, client_of):
    """An agent without a terminal is not stopped by a question."""
    locked = tmp_path / "locked.key"
    subprocess.run(
        f"openssl rsa -aes128 -passout pass:secret -in server.key -out {locked}".split(),
        cwd=certificates,
        check=True,
        capture_output=True,
    )
    pem = str(certificates / "server.pem")
    with FaultServer(tmp_path, pem, certificates / "server.key") as server:
        client = client_of(server, certificate=pem, client_certificate=pem, client_key=str(locked))
        answer = client.post(spans())

    assert answer.outcome is Outcome.RETRY
