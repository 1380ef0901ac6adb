"""A stored run arrives at a server as it would have originally."""

from __future__ import annotations

import json

import pytest
from fault_server import FaultServer
from grpc_fault_server import GrpcFaultServer
from run_folders import MS, START, RunFolderBuilder, S

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.cli.export import send
from otel_mlperf.errors import ConfigError, Unreachable
from otel_mlperf.settings.run_settings import write_settings


def build(tmp_path, spans=3):
    """A run of two ranks; the first span has attributes, a link and an error."""
    run = RunFolderBuilder(tmp_path)
    for rank in range(2):
        run.process(S, rank=rank, service="digits-service", instance_id=f"instance-{rank}")
    given = {
        "ml.training.step": 2,
        "note": "x",
        "exception.type": "RuntimeError",
        "exception.message": "shape mismatch",
        "exception.stacktrace": "",
    }
    root = run.span(
        2, "train.step", 0, 50 * MS, status="error", attributes=json.dumps(given),
        links=json.dumps([["0000000000000000000000000000abcd", "00000000000000ef"]]),
    )  # fmt: skip
    for number in range(spans - 2):
        run.span(2, "forward", number * MS, MS, parent_id=root, category="forward")
    run.span(2, "train.step", 0, 40 * MS, rank=1, interrupted=True, status="error")
    return run.write()


def test_spans_arrive_with_all_that_they_had(tmp_path, server, capsys):
    """Ids, parent, times, attributes, event, link, status and resource."""
    path = build(tmp_path)

    send(str(path), server.url)

    assert capsys.readouterr().out == (
        f"3 of 3 sampled spans of digits-3f2a sent to {server.url}/v1/traces\n"
    )
    spans = {
        (span["resource"]["ml.distributed.rank"], span["name"]): span for span in server.spans()
    }
    assert spans[0, "train.step"] == {
        "trace_id": f"{3:032x}",
        "span_id": f"{1:016x}",
        "parent_id": "",
        "name": "train.step",
        "start_ns": START,
        "end_ns": START + 50 * MS,
        "attributes": {
            "ml.section.category": "other",
            "ml.phase": "train",
            "thread.id": 4242,
            "thread.name": "MainThread",
            "ml.training.step": 2,
            "note": "x",
        },
        "links": [["0000000000000000000000000000abcd", "00000000000000ef"]],
        "events": ["exception"],
        "points": [
            [
                START + 50 * MS,
                "exception",
                {"exception.type": "RuntimeError", "exception.message": "shape mismatch"},
            ]
        ],
        "events_left_out": 0,
        "dropped": [0, 0, [0], [0]],
        "error": "RuntimeError: shape mismatch",
        "status": [2, "RuntimeError: shape mismatch"],
        "kind": 1,
        "flags": 0x101,
        "trace_state": "",
        "scope": ["otel_mlperf", om.__version__, "https://opentelemetry.io/schemas/1.44.0"],
        "link_fields": [["0000000000000000000000000000abcd", 0x101, {}]],
        "resource": names.SDK
        | {
            "os.type": "linux",
            "process.pid": 100,
            "service.name": "digits-service",
            "service.instance.id": "instance-0",
            "host.name": "node1",
            "ml.run.id": "3f2a9c0d17e84b55",
            "ml.run.name": "digits",
            "ml.distributed.rank": 0,
            "ml.distributed.local_rank": 0,
            "ml.distributed.world_size": 1,
            "ml.distributed.restart_count": 0,
        },
    }
    assert spans[0, "forward"]["parent_id"] == f"{1:016x}"
    assert spans[1, "train.step"]["error"] == "the process ended while this section was open"


def test_sending_twice_sends_the_same(tmp_path, server):
    """So that a server which knows a span has it once."""
    path = build(tmp_path)
    send(str(path), server.url)
    send(str(path), server.url)

    first, second = server.spans()[:3], server.spans()[3:]
    assert sorted(map(str, first)) == sorted(map(str, second))


@pytest.mark.fault("F09")
def test_a_server_that_wants_less_gets_halves(tmp_path, server):
    """413 once: all spans arrive all the same."""
    path = build(tmp_path, spans=9)
    server.mode("status", code=413, times=1)

    send(str(path), server.url)

    assert len(server.spans()) == 9


def test_a_server_that_comes_back_gets_everything(tmp_path, server):
    """A few tries are made."""
    path = build(tmp_path)
    server.mode("status", code=503, times=1)

    send(str(path), server.url)

    assert len(server.spans()) == 3


def test_a_server_that_does_not_let_us_in_is_told_at_once(tmp_path, server):
    """401 names the variable to look at; nothing is tried again."""
    path = build(tmp_path)
    server.mode("status", code=401)
    with pytest.raises(Unreachable) as error:
        send(str(path), server.url)

    assert str(error.value) == (
        f"sending: {server.url}/v1/traces answered 401: check OTEL_EXPORTER_OTLP_HEADERS"
    )
    assert len(server.requests()) == 1


def test_spans_that_are_refused_are_not_counted_as_sent(tmp_path, server, capsys):
    """A partial success is a failure of its rest."""
    path = build(tmp_path)
    server.mode("partial", rejected=1, message="too old")
    with pytest.raises(Unreachable, match="the server rejected 2 spans"):
        send(str(path), server.url)

    assert capsys.readouterr().out.startswith("1 of 3 sampled spans")


@pytest.mark.slow
def test_a_dead_server_is_unreachable(tmp_path, server):
    """After a few tries, with exit code 69."""
    path = build(tmp_path)
    server.kill()
    with pytest.raises(Unreachable, match=r"^sending: http://localhost:\d+/v1/traces: ") as error:
        send(str(path), server.url)

    assert error.value.exit_code == 69


def test_spans_are_sent_by_grpc_where_that_is_set(tmp_path, monkeypatch):
    """The same ones, under the same ids."""
    path = build(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    (tmp_path / "grpc").mkdir()
    with FaultServer(tmp_path) as http, GrpcFaultServer(tmp_path / "grpc") as grpc:
        send(str(path), grpc.url)
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
        send(str(path), http.url)

    assert http.spans()
    assert grpc.spans() == http.spans()


@pytest.mark.slow
def test_the_port_of_grpc_is_pointed_out(tmp_path, capsys):
    """What everybody gets wrong first."""
    with pytest.raises(Unreachable) as error:
        send(str(build(tmp_path)), "http://localhost:4317")

    hint = "port 4317 uses grpc, but the protocol is http/protobuf: use http://localhost:4318"
    assert hint in capsys.readouterr().err
    assert hint in str(error.value)


def test_without_an_endpoint_nothing_is_sent(tmp_path, monkeypatch):
    """Not even to a default."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with pytest.raises(ConfigError, match="sending: no endpoint is set"):
        send(str(build(tmp_path)), None)


def test_an_endpoint_that_only_the_run_folder_names_is_a_hint(tmp_path, monkeypatch):
    """Nothing is sent there: the folder may be somebody else's."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    folder = build(tmp_path)
    write_settings(str(folder), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9/$(x)"})
    with pytest.raises(ConfigError, match=r"pass --endpoint 'http://127.0.0.1:9/\$\(x\)' or"):
        send(str(folder), None)
