"""A request is delivered as the server wants it, and what it refuses is counted."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from run_folders import MS, RunFolderBuilder

from otel_mlperf.errors import ConfigError, Unreachable
from otel_mlperf.otlp.http_client import Outcome, ServerAnswer
from otel_mlperf.replay.span_requests import deliver, requests, traces_settings
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store


class Answering:
    """A client whose server answers by what is in a request."""

    def __init__(self, answer):
        self._answer = answer
        self.posted = []

    def post(self, body):
        resources = ExportTraceServiceRequest.FromString(body).resource_spans
        names = [span.name for of in resources for span in of.scope_spans[0].spans]
        self.posted.append(names)
        return self._answer(names)


@pytest.fixture
def body(tmp_path):
    """A request of four spans, a to d."""
    run = RunFolderBuilder(tmp_path)
    for at, name in enumerate("abcd"):
        run.span(2, name, at * MS, MS)
    folder = read_run(run.write())
    [(_, body)] = requests(folder, Store(folder.path))
    return body


def test_what_is_too_large_goes_in_halves(body):
    """Every span arrives once."""
    client = Answering(
        lambda names: ServerAnswer(Outcome.TOO_LARGE if len(names) > 1 else Outcome.DELIVERED)
    )

    assert deliver(client, body) == 0
    assert [names for names in client.posted if len(names) == 1] == [["a"], ["b"], ["c"], ["d"]]


def test_a_span_that_cannot_be_read_costs_itself_alone(body):
    """A clear no is halved until it is about one span."""
    client = Answering(
        lambda names: ServerAnswer(Outcome.REJECTED if "c" in names else Outcome.DELIVERED, "bad")
    )

    assert deliver(client, body) == 1


def test_what_a_delivery_left_out_is_counted(body):
    """A partial success is a failure of its rest."""
    client = Answering(lambda names: ServerAnswer(Outcome.DELIVERED, rejected=3))

    assert deliver(client, body) == 3


def test_who_is_not_let_in_does_not_try_again(body):
    """Somebody has to change the headers first."""
    client = Answering(lambda names: ServerAnswer(Outcome.UNAUTHORIZED, "answered 401"))

    with pytest.raises(Unreachable, match=r"^sending: answered 401$"):
        deliver(client, body)
    assert len(client.posted) == 1


def test_an_option_goes_before_the_environment():
    """And what the environment has wrong is said."""
    said = []
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://elsewhere:4318"}

    assert traces_settings(None, environ, said.append).endpoint == "http://elsewhere:4318/v1/traces"
    given = traces_settings("http://localhost:4318", environ, said.append)
    assert (given.endpoint, said) == ("http://localhost:4318/v1/traces", [])


def test_without_an_endpoint_there_is_nowhere_to_go():
    """The message names both ways to give one."""
    with pytest.raises(ConfigError, match=r"pass --endpoint .* or set OTEL_EXPORTER_OTLP_ENDPOINT"):
        traces_settings(None, {}, print)
