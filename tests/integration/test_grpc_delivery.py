"""A run that is sent over gRPC, and the program that it records."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from grpc_fault_server import GrpcFaultServer
from runs import LIMIT_S, Ended, adds_up, environment

PROGRAM = """
import sys
import otel_mlperf as om
with om.start("digits", console=False):
    for _ in om.steps(range(30)):
        with om.span("forward"):
            pass
print([name for name in sys.modules if name.partition(".")[0] == "grpc"])
"""


def run(folder, server: GrpcFaultServer) -> Ended:
    """Runs the program to its end, its agent perhaps not."""
    runs = folder / "runs"
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": server.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_MLPERF_TRACE_EVERY": "1",
        "OTEL_MLPERF_DRAIN_TIMEOUT_S": "1",
    }
    # An interpreter of its own: the one of ``warm_python`` has loaded more than the program does.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=environment(runs, **variables),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    return Ended(0, done.stdout, done.stderr, runs, folder / "count")


def stored(ended: Ended) -> set[tuple[str, str]]:
    """Trace and span id of each span of the run folder."""
    return {
        (row["trace_id"], row["span_id"])
        for row in ended.rows("SELECT trace_id, span_id FROM spans")
    }


def arrived(server: GrpcFaultServer) -> set[tuple[str, str]]:
    """Trace and span id of each span that the server took."""
    return {(span["trace_id"], span["span_id"]) for span in server.spans()}


def test_the_training_process_does_not_load_grpc(tmp_path) -> None:
    """The agent does, and each span of the run arrives, as do metrics."""
    (tmp_path / "server").mkdir()
    with GrpcFaultServer(tmp_path / "server") as server:
        ended = run(tmp_path, server).settled()

    assert (ended.output, ended.errors) == ("[]\n", "")
    assert arrived(server) == stored(ended)
    assert len(stored(ended)) > 60
    assert server.points()
    for signal in ("spans", "metrics"):
        account = ended.accounts()[signal]["otlp"]
        assert adds_up(account)
        assert (account["lost"], account["pending"]) == ({}, 0)


@pytest.mark.slow
@pytest.mark.fault("F01")
def test_nothing_is_lost_while_the_server_is_away(tmp_path) -> None:
    """What a run could not deliver is delivered afterwards, by gRPC and under the same ids."""
    (tmp_path / "server").mkdir()
    server = GrpcFaultServer(tmp_path / "server")
    ended = run(tmp_path, server)
    assert arrived(server) == set()
    with server:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": server.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }
        ended.settled()
        subprocess.run(
            [sys.executable, "-m", "otel_mlperf", "doctor", "--recover", str(ended.folder)],
            env=os.environ | environment(ended.runs, **variables),
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )

    assert arrived(server) == stored(ended)
    assert ended.accounts()["spans"]["otlp"]["pending"] == 0
