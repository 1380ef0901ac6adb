"""An exchange ends in time, within bounds and over the right connection."""

from __future__ import annotations

import socket
import tracemalloc

import pytest
from fault_server import FaultServer
from otlp_requests import spans
from servers.running import wait_until

from otel_mlperf.otlp.endpoint_settings import SignalSettings
from otel_mlperf.otlp.http_client import Client, Outcome, ServerAnswer

CANARY = "SECRET_CANARY_2e"


@pytest.mark.fault("F08")
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


@pytest.mark.fault("F03")
def test_a_dripping_server_meets_the_deadline(server, client_of):
    """Each byte comes in time, the whole answer does not: the deadline is for the whole."""
    server.mode("drip", every=0.05)

    answer = client_of(server, timeout_s=0.5).post(spans())

    assert answer.outcome is Outcome.RETRY
    assert answer.reason == f"{server.url}/v1/traces: no complete answer within 0.5 s"


@pytest.mark.fault("F03")
def test_a_hanging_server_meets_the_deadline(server, client_of):
    """A server that takes a request and says nothing is given up."""
    server.mode("hang", times=1)
    client = client_of(server, timeout_s=0.3)

    assert client.post(spans()).outcome is Outcome.RETRY
    assert wait_until(lambda: client.post(spans()).outcome is Outcome.DELIVERED)


@pytest.mark.fault("F03")
def test_a_server_that_takes_no_bytes_meets_the_deadline(client_of):
    """Sending into a full window ends, too."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        settings = SignalSettings(
            signal="traces", endpoint=f"http://127.0.0.1:{port}/", timeout_s=0.3, gzip=False
        )
        client = Client(settings)

        assert client.post(bytes(1 << 26)).reason.endswith("no complete answer within 0.3 s")


@pytest.mark.fault("F10")
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


@pytest.mark.fault("F11")
def test_a_host_that_does_not_exist_is_a_retry():
    """A name that cannot be looked up is said, not raised."""
    settings = SignalSettings(signal="traces", endpoint="http://otel.invalid:4318/v1/traces")

    answer = Client(settings).post(spans())

    assert answer.outcome is Outcome.RETRY
    assert answer.reason.startswith("http://otel.invalid:4318/v1/traces: ")


@pytest.mark.fault("F11")
@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "ü" * 70])
def test_a_host_that_is_no_name_is_a_retry(host):
    """What cannot even be asked for is said, not raised."""
    settings = SignalSettings(signal="traces", endpoint=f"http://{host}:4318/v1/traces")

    assert Client(settings).post(spans()).outcome is Outcome.RETRY


@pytest.mark.fault("S13")
def test_no_netrc_no_proxy(server, client_of, monkeypatch, tmp_path):
    """Files and variables that were meant for other programs change nothing."""
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine localhost login me password {CANARY}\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    answer = client_of(server, headers={"authorization": "Bearer right"}).post(spans())

    assert answer == ServerAnswer(Outcome.DELIVERED)
    assert server.requests()[-1]["headers"]["authorization"] == "Bearer right"


@pytest.mark.fault("F08", "S13")
def test_answers_take_little_memory(server, client_of):
    """An answer of 64 MiB, or one that would unpack to 32, is not held in memory."""
    client = client_of(server)
    client.post(spans())
    peaks = []
    for mode, options in (("huge", {"bytes": 1 << 26}), ("bomb", {})):
        server.mode(mode, **options)
        tracemalloc.start()
        try:
            client.post(spans())
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()

    assert max(peaks) < 4 << 20


@pytest.mark.fault("F11", "S7")
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

    assert answers == [ServerAnswer(Outcome.DELIVERED)] * 2
    assert [answer.outcome for answer in refused] == [Outcome.RETRY] * 3
    assert "certificate refused" in refused[0].reason
    assert "No such file" in refused[1].reason
    assert got == 2


def test_certificate_that_nobody_looks_at_is_taken(certificates, tmp_path, client_of):
    """Where that was asked for in as many words: the way is still encrypted."""
    pem, key = certificates / "server.pem", certificates / "server.key"
    with FaultServer(tmp_path, pem, key) as server:
        answer = client_of(server, is_verified=False).post(spans())

    assert answer.outcome is Outcome.DELIVERED


@pytest.mark.fault("S7")
def test_a_client_key_that_needs_a_password_asks_nobody(
    certificates, locked_key, tmp_path, client_of
):
    """An agent without a terminal is not stopped by a question."""
    pem = str(certificates / "server.pem")
    with FaultServer(tmp_path, pem, certificates / "server.key") as server:
        client = client_of(
            server, certificate=pem, client_certificate=pem, client_key=str(locked_key)
        )
        answer = client.post(spans())

    assert answer.outcome is Outcome.RETRY
