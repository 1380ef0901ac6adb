"""OTLP over gRPC, whatever a server does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from grpc_fault_server import MAX_BYTES, GrpcFaultServer
from otlp_requests import metrics, spans
from servers.running import wait_until

from otel_mlperf import names
from otel_mlperf.otlp.endpoint_settings import Signal, SignalSettings
from otel_mlperf.otlp.grpc_client import GrpcClient
from otel_mlperf.otlp.http_client import Outcome, ServerAnswer
from otel_mlperf.otlp.split import post_in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CANARY = "SECRET_CANARY_7c"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcFaultServer]:
    """One server for all tests here that leave it alive."""
    with GrpcFaultServer(tmp_path_factory.mktemp("grpc")) as server:
        yield server


@pytest.fixture
def server(shared: GrpcFaultServer) -> GrpcFaultServer:
    """The server, behaving."""
    shared.mode("ok")
    return shared


@pytest.fixture
def client_of() -> Iterator[Callable[..., GrpcClient]]:
    """Makes clients of a server and closes them."""
    made: list[GrpcClient] = []

    def make(server: GrpcFaultServer, signal: Signal = "traces", **changes: Any) -> GrpcClient:
        settings = SignalSettings(signal=signal, endpoint=server.url, is_grpc=True)
        made.append(GrpcClient(replace(settings, **changes)))
        return made[-1]

    yield make
    for client in made:
        client.close()


def ids(found):
    """The ids of spans, which their request has counted from 1."""
    return [int(span["span_id"], 16) for span in found]


def test_spans_arrive(server, client_of):
    """Ids as encoded, headers as metadata, and the specification's user agent."""
    answer = client_of(server, headers={"x-key": "v"}).post(spans(3))

    request = server.requests()[-1]
    assert answer == ServerAnswer(Outcome.DELIVERED)
    assert request["path"] == "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    assert ids(request["spans"]) == [1, 2, 3]
    assert request["headers"]["x-key"] == "v"
    assert request["headers"]["user-agent"].startswith(names.USER_AGENT)


def test_metrics_arrive(server, client_of):
    """The other signal has a service of its own."""
    assert client_of(server, "metrics").post(metrics()) == ServerAnswer(Outcome.DELIVERED)

    request = server.requests()[-1]
    assert request["path"] == "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
    assert request["points"][0]["value"] == 0.5


@pytest.mark.parametrize(("gzip", "outcome"), [(True, Outcome.RETRY), (False, Outcome.DELIVERED)])
def test_requests_are_compressed_unless_switched_off(tmp_path, client_of, gzip, outcome):
    """A server that cannot decompress takes the ones that are not."""
    with GrpcFaultServer(tmp_path, has_gzip=False) as server:
        answer = client_of(server, gzip=gzip).post(spans(50))

    assert answer.outcome is outcome


@pytest.mark.fault("F06")
@pytest.mark.parametrize(("signal", "body"), [("traces", spans(5)), ("metrics", metrics())])
def test_partial_success_is_counted(server, client_of, signal, body):
    """Items that the server rejected are not delivered."""
    server.mode("partial", rejected=3, message="too\x1b[31m old" + "!" * 500)

    answer = client_of(server, signal).post(body)

    assert (answer.outcome, answer.rejected) == (Outcome.DELIVERED, 3)
    assert answer.reason.startswith("too [31m old!!!")
    assert len(answer.reason) == 200


HEADERS = "check OTEL_EXPORTER_OTLP_HEADERS: no"
SERVICE = "check that the server accepts traces over gRPC: no"


@pytest.mark.fault("F04", "F05", "S13")
@pytest.mark.parametrize(
    ("code", "message", "outcome", "reason"),
    [
        ("INVALID_ARGUMENT", "no", Outcome.REJECTED, "no"),
        ("INTERNAL", "grpc: error unmarshalling request: no", Outcome.REJECTED, "grpc: error"),
        ("INTERNAL", "failed to decode a header", Outcome.RETRY, "failed"),
        ("UNAUTHENTICATED", "no", Outcome.UNAUTHORIZED, HEADERS),
        ("PERMISSION_DENIED", "no", Outcome.UNAUTHORIZED, HEADERS),
        ("UNIMPLEMENTED", "no", Outcome.RETRY, SERVICE),
        ("RESOURCE_EXHAUSTED", "exceeded monthly quota", Outcome.RETRY, "exceeded"),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (7 vs. 4)",
         Outcome.TOO_LARGE, "grpc: received"),
        ("RESOURCE_EXHAUSTED", "gRPC message exceeds maximum size 4: 7",
         Outcome.TOO_LARGE, "gRPC message"),
        ("OUT_OF_RANGE", "Error, decoded message length too large: found 7 bytes",
         Outcome.TOO_LARGE, "Error"),
        ("OUT_OF_RANGE", "no", Outcome.RETRY, "no"),
        ("UNAVAILABLE", "no", Outcome.RETRY, "no"),
        ("DEADLINE_EXCEEDED", "no", Outcome.RETRY, "no"),
        ("ABORTED", "no", Outcome.RETRY, "no"),
        ("CANCELLED", "no", Outcome.RETRY, "no"),
        ("DATA_LOSS", "no", Outcome.RETRY, "no"),
        ("NOT_FOUND", "no", Outcome.RETRY, "no"),
        ("FAILED_PRECONDITION", "no", Outcome.RETRY, "no"),
        ("UNKNOWN", "no", Outcome.RETRY, "no"),
    ],
)  # fmt: skip
def test_every_code_decides_what_is_done_next(server, client_of, code, message, outcome, reason):
    """In words that name endpoint and code; the request went out once."""
    server.mode("status", code=code, message=message)
    before = len(server.requests())

    answer = client_of(server).post(spans())

    assert answer.outcome is outcome
    assert answer.reason.startswith(f"{server.url}: {code}: {reason}")
    assert len(server.requests()) == before + 1


@pytest.mark.fault("F04")
@pytest.mark.parametrize(
    ("code", "asked_s", "after_s"),
    [("UNAVAILABLE", 7.5, 7.5), ("RESOURCE_EXHAUSTED", 3600, 60.0), ("UNAVAILABLE", 0, 0.0)],
)
def test_a_pause_that_the_server_asks_for_is_kept(server, client_of, code, asked_s, after_s):
    """By RetryInfo, a minute at most."""
    server.mode("status", code=code, retry_s=asked_s)

    assert client_of(server).post(spans()).after_s == after_s


@pytest.mark.fault("S13")
@pytest.mark.parametrize("details", ["", "<html>", "\x1a\x7f", "\x1a\x02\x0a\x00"])
def test_details_that_are_no_status_ask_for_nothing(server, client_of, details):
    """The code alone counts."""
    server.mode("status", code="UNAVAILABLE", details=details)

    answer = client_of(server).post(spans())

    assert (answer.outcome, answer.after_s) == (Outcome.RETRY, None)


@pytest.mark.fault("F05")
def test_the_bad_span_alone_is_lost(server, client_of):
    """A refused request is halved until one span is left."""
    server.mode("poison", name="bad")
    before = len(server.spans())
    lost: dict[str, int] = {}

    answer = post_in_parts(client_of(server).post, spans(20, bad=13), "traces", lost)

    assert answer.outcome is Outcome.DELIVERED
    assert lost == {"rejected": 1}
    assert ids(server.spans()[before:]) == [*range(1, 13), *range(14, 21)]


@pytest.mark.fault("F09")
@pytest.mark.parametrize("gzip", [True, False])
def test_a_request_larger_than_the_server_takes_is_halved(server, client_of, gzip):
    """All of it arrives, in order."""
    before = len(server.spans())
    body = spans(100, padding=MAX_BYTES // 40)
    lost: dict[str, int] = {}

    answer = post_in_parts(client_of(server, gzip=gzip).post, body, "traces", lost)

    assert (answer.outcome, lost) == (Outcome.DELIVERED, {})
    assert ids(server.spans()[before:]) == list(range(1, 101))


@pytest.mark.fault("F08", "S13")
@pytest.mark.parametrize(
    ("mode", "options"), [("garbage", {"body": "<html>"}), ("huge", {"bytes": 1 << 22})]
)
def test_an_answer_that_is_not_otlp_is_no_delivery(server, client_of, mode, options):
    """Nor is a request halved because its answer is too long."""
    server.mode(mode, **options)
    client = client_of(server)

    assert client.post(spans()).outcome is Outcome.RETRY
    server.mode("ok")
    assert client.post(spans()).outcome is Outcome.DELIVERED


@pytest.mark.fault("F03")
def test_a_hanging_server_meets_the_deadline(server, client_of):
    """A server that takes a request and answers nothing is given up."""
    server.mode("hang", times=1)
    client = client_of(server, timeout_s=0.3)

    answer = client.post(spans())

    assert answer.outcome is Outcome.RETRY
    assert answer.reason.startswith(f"{server.url}: DEADLINE_EXCEEDED: ")
    assert wait_until(lambda: client.post(spans()).outcome is Outcome.DELIVERED)


@pytest.mark.fault("F10")
def test_a_lost_answer_is_sent_again_under_the_same_ids(server, client_of):
    """Whether or not the server had taken the request."""
    server.mode("status", code="UNAVAILABLE", times=1, keep=True)
    before = len(server.spans())
    client = client_of(server)

    answers = [client.post(spans(2)).outcome for _ in range(2)]

    assert answers == [Outcome.RETRY, Outcome.DELIVERED]
    assert ids(server.spans()[before:]) == [1, 2, 1, 2]


@pytest.mark.fault("F01")
def test_a_server_that_returns_is_reached_by_the_next_request(tmp_path, client_of):
    """However often it was tried before: the wait between two tries is the sender's alone."""
    with GrpcFaultServer(tmp_path) as server:
        client = client_of(server)
        outcomes = [client.post(spans()).outcome]
        server.kill()
        down = [client.post(spans()) for _ in range(5)]
        server.start()
        outcomes.append(client.post(spans()).outcome)

    assert outcomes == [Outcome.DELIVERED] * 2
    assert [answer.outcome for answer in down] == [Outcome.RETRY] * 5
    assert "Connection refused" in down[-1].reason


@pytest.mark.fault("F11")
@pytest.mark.parametrize("host", ["otel.invalid", "a..b", "x" * 64 + ".example", "ü" * 70, "unix"])
def test_a_host_that_does_not_exist_is_a_retry(host):
    """Reported, not raised."""
    endpoint = f"http://{host}:4317"
    client = GrpcClient(SignalSettings(signal="traces", endpoint=endpoint, is_grpc=True))

    answer = client.post(spans())

    assert answer.outcome is Outcome.RETRY
    assert answer.reason.startswith(f"{endpoint}: UNAVAILABLE: ")
    assert "resol" in answer.reason


@pytest.mark.fault("F11", "S7")
def test_tls_trusts_the_given_authority_alone(certificates, tmp_path, client_of):
    """Over TLS spans arrive where the certificate is trusted, and nothing is sent elsewhere."""
    pem, key = certificates / "server.pem", certificates / "server.key"
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    with GrpcFaultServer(tmp_path, pem, key) as server:
        good = client_of(server, certificate=str(pem)).post(spans())
        paths = [str(certificates / "other.pem"), str(tmp_path / "missing.pem"), str(rubbish), None]
        refused = [client_of(server, certificate=path).post(spans()) for path in paths]
        got = len(server.spans())

    assert good == ServerAnswer(Outcome.DELIVERED)
    assert [answer.outcome for answer in refused] == [Outcome.RETRY] * 4
    assert "No such file" in refused[1].reason
    assert got == 1


@pytest.mark.fault("S7")
def test_a_server_that_asks_for_a_certificate_gets_it(certificates, tmp_path, client_of):
    """With its key beside it or in the same file; a client without one is not let in."""
    pem, key = certificates / "server.pem", certificates / "server.key"
    own, own_key = certificates / "other.pem", certificates / "other.key"
    both = tmp_path / "both.pem"
    both.write_bytes(own.read_bytes() + own_key.read_bytes())
    with GrpcFaultServer(tmp_path, pem, key, clients=own) as server:
        answers = [
            client_of(
                server, certificate=str(pem), client_certificate=shown, client_key=its_key
            ).post(spans())
            for shown, its_key in (
                (str(own), str(own_key)),
                (str(both), None),
                (None, None),
                (str(pem), str(key)),
            )
        ]

    taken = [Outcome.DELIVERED] * 2 + [Outcome.RETRY] * 2
    assert [answer.outcome for answer in answers] == taken


@pytest.mark.fault("S7")
def test_a_client_certificate_that_is_no_use_ends_no_process(
    certificates, locked_key, tmp_path, client_of
):
    """Without a key, with a locked or another's: reported, and nobody is asked."""
    pem = str(certificates / "server.pem")
    with GrpcFaultServer(tmp_path, certificates / "server.pem", certificates / "server.key") as one:
        answers = [
            client_of(one, certificate=pem, client_certificate=pem, client_key=key).post(spans())
            for key in (None, str(locked_key), str(certificates / "other.key"))
        ]

    assert [answer.outcome for answer in answers] == [Outcome.RETRY] * 3
    assert "key values mismatch" in answers[2].reason


@pytest.mark.fault("S8")
def test_an_echoed_secret_is_not_repeated(server, client_of):
    """A server that quotes our headers in its refusal does not put them into our logs."""
    server.mode("status", code="UNAUTHENTICATED", message=f"no such token: {CANARY}")

    answer = client_of(server, headers={"authorization": f"Bearer {CANARY}"}).post(spans())

    assert "no such token: ***" in answer.reason
    assert CANARY not in answer.reason


def test_grpcio_writes_nothing_to_stderr():
    """A terminal of somebody who sends a run; programs that are started later write as ever."""
    code = """
import os
from otel_mlperf.otlp.endpoint_settings import SignalSettings
from otel_mlperf.otlp.grpc_client import GrpcClient
there = dict(endpoint="http://localhost:9", headers={"x": "no\\n"}, is_grpc=True)
print(GrpcClient(SignalSettings(signal="traces", **there)).post(b"").outcome.value)
print(os.environ.get("GRPC_VERBOSITY"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("retry\nNone\n", "")


@pytest.mark.parametrize("header", [{"x": "a\r\nb"}, {"x": "ü"}, {"a!": "b"}, {"x-bin": "text"}])
def test_a_header_that_grpc_cannot_carry_is_a_retry(server, client_of, header):
    """Nothing is sent, and nothing raises."""
    assert client_of(server, headers=header).post(spans()).outcome is Outcome.RETRY


def test_a_proxy_of_the_environment_gets_nothing(server, client_of, monkeypatch):
    """The job never meant it for telemetry."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)

    assert client_of(server).post(spans()).outcome is Outcome.DELIVERED


def test_the_port_of_http_is_explained():
    """A server that does not speak gRPC on 4318 leads to the port that does."""
    endpoint = "http://127.0.0.1:4318"
    client = GrpcClient(SignalSettings(signal="traces", endpoint=endpoint, is_grpc=True))

    assert client.post(spans()).reason.endswith(
        " (port 4318 uses http/protobuf, but the protocol is grpc: use http://127.0.0.1:4317 "
        "or OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf)"
    )


def test_without_grpcio_requests_are_kept(server, client_of, monkeypatch):
    """The reason names what to install."""
    monkeypatch.setitem(sys.modules, "grpc", None)

    answer = client_of(server).post(spans())

    assert answer.outcome is Outcome.RETRY
    assert answer.reason.startswith(f"{server.url}: grpcio is not installed: pip install grpcio")
