"""The thread that sends, whatever it is given."""

from __future__ import annotations

import threading

import pytest
from otlp_requests import spans

from otel_mlperf.agent.delivery.otlp_destination import OtlpDestination
from otel_mlperf.agent.delivery.outbox import Outbox
from otel_mlperf.agent.delivery.sender import Sender
from otel_mlperf.otlp.endpoint_settings import read_settings

FOR_EVER_S = 900


@pytest.fixture
def requests(tmp_path):
    """An empty outbox."""
    return Outbox(tmp_path / "requests", 1 << 20)


@pytest.fixture
def sender(server, requests):
    """Sends the traces of the outbox to the receiver."""
    traces, _ = read_settings({}, "traces", server.url)
    made = Sender(requests, [OtlpDestination({"spans": traces})])
    yield made
    made.stop()
    for thread in threading.enumerate():
        if thread.name == "otel_mlperf spans/otlp":
            thread.join()


def test_request_that_cannot_be_sent_stops_no_other(server, requests, sender) -> None:
    """What the agent itself fails at is counted as lost, and the next request goes out."""
    server.mode("early", code=400, times=1)
    requests.add(1, "spans/otlp", 7, b"\xff is no request")
    requests.add(2, "spans/otlp", 0, b"")
    sender.start()

    assert sender.drain(FOR_EVER_S)
    assert [(o.number, o.lost) for o in requests.news()] == [(1, {"internal": 7}), (2, {})]


@pytest.mark.fault("F42")
def test_request_that_the_disk_has_damaged_is_not_sent(tmp_path, server, requests, sender) -> None:
    """A file that a power cut has emptied is lost; its items are not called delivered."""
    requests.add(1, "spans/otlp", 7, b"\x0a\x00")
    (file,) = (tmp_path / "requests").glob("*.batch")
    file.write_bytes(b"")
    sender.start()

    assert sender.drain(FOR_EVER_S)
    assert [(o.delivered, o.lost) for o in requests.news()] == [(0, {"outbox_io": 7})]
    assert server.requests() == []


@pytest.mark.sampled(3)
@pytest.mark.fault("F01", "F04", "F05", "F07", "F08", "F10")
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("status", {"code": 404}),
        ("status", {"code": 500}),
        ("status", {"code": 503, "headers": {"Retry-After": "0"}}),
        ("status", {"code": 307, "headers": {"Location": "http://127.0.0.1:9/"}}),
        ("garbage", {"body": "<html>"}),
        ("huge", {"bytes": 1 << 22}),
        ("reset", {}),
        ("reset", {"keep": True}),
        ("close", {}),
    ],
)
def test_whatever_a_server_does_for_a_while_costs_nothing(server, requests, sender, mode, options):
    """The request waits, is tried again and taken: its items are delivered, none is lost."""
    server.mode(mode, times=1, **options)
    requests.add(1, "spans/otlp", 3, spans(3))
    sender.start()

    assert sender.drain(FOR_EVER_S)
    assert [(o.delivered, o.lost) for o in requests.news()] == [(3, {})]
    assert {int(span["span_id"], 16) for span in server.spans()} == {1, 2, 3}


@pytest.mark.fault("F06")
def test_what_a_server_has_rejected_is_lost_and_not_sent_again(server, requests, sender) -> None:
    """A request that was taken in part is done with: the rest of it is delivered, once."""
    server.mode("partial", rejected=1, times=1)
    requests.add(1, "spans/otlp", 3, spans(3))
    sender.start()

    assert sender.drain(FOR_EVER_S)
    assert [(o.delivered, o.lost) for o in requests.news()] == [(2, {"rejected": 1})]
    assert len(server.requests()) == 1
