"""What is sent through the chain: by a real run of two ranks, or by hand as 64 ranks would?"""

from __future__ import annotations

import os
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import urllib3
from cluster.stored import StoredSpan
from load import loads
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from runs import Ended
from servers.running import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANKS = 2
SPANS_PER_SECOND = 500
"""Of each rank."""
SIMULATED = "simulated"
"""The service of what is made by hand."""


@contextmanager
def training(endpoint: str, seconds: int, **more: str) -> Iterator[loads.Under]:
    """Two ranks of one run, all of whose spans are kept and sent by their agent.

    The run's id is its service too, by which its spans and metrics are found.
    """
    variables = of_one_run() | {"OTEL_MLPERF_DRAIN_TIMEOUT_S": "300"} | more
    arguments = ["--rate", str(SPANS_PER_SECOND), "--seconds", str(seconds)]
    with loads.under("ours", endpoint, **variables) as one:
        for rank in range(RANKS):
            one.start(*arguments, RANK=str(rank))
        yield one


def of_one_run() -> dict[str, str]:
    """What the ranks of a new run share."""
    run_id = os.urandom(16).hex()
    return {
        "OTEL_MLPERF_RUN_ID": run_id,
        "OTEL_SERVICE_NAME": run_id,
        "WORLD_SIZE": str(RANKS),
    }


def service_of(one: loads.Under) -> str:
    """By what the spans and metrics of a run are found."""
    return one.variables["OTEL_SERVICE_NAME"]


def recorded_spans(one: loads.Under) -> set[StoredSpan]:
    """Every span that the run's own folder holds."""
    rows = _ended(one).rows("SELECT trace_id, span_id, rank FROM spans")
    return {StoredSpan(row["trace_id"], row["span_id"], row["rank"]) for row in rows}


def recorded_steps(one: loads.Under) -> dict[str, int]:
    """How many steps each rank has made, as the run's own folder says."""
    rows = _ended(one).rows("SELECT rank, count(*) AS steps FROM steps GROUP BY rank")
    return {str(row["rank"]): row["steps"] for row in rows}


def traces_of_steps(one: loads.Under) -> dict[int, set[str]]:
    """The traces that each step's spans are in, of all ranks."""
    found: dict[int, set[str]] = {}
    for row in _ended(one).rows("SELECT DISTINCT number, trace_id FROM steps"):
        found.setdefault(row["number"], set()).add(row["trace_id"])
    return found


def accounts(one: loads.Under) -> list[Path]:
    """The accounts of the run: one of each node's agent."""
    return list((_ended(one).folder / "accounting").glob("*.json"))


def _ended(one: loads.Under) -> Ended:
    return Ended(0, "", "", one.runs, one.folder)


def step_of_ranks(trace_id: bytes, ranks: range, failed: int) -> bytes:
    """The request of one node for one step: a span a rank, of which ``failed``'s has an error."""
    request = ExportTraceServiceRequest()
    now_ns = time.time_ns()
    for rank in ranks:
        group = request.resource_spans.add()
        name = group.resource.attributes.add(key="service.name")
        name.value.string_value = SIMULATED
        group.resource.attributes.add(key="ml.distributed.rank").value.int_value = rank
        span = group.scope_spans.add().spans.add()
        span.trace_id, span.span_id = trace_id, random.SystemRandom().randbytes(8)
        span.name, span.kind = "train.step", Span.SPAN_KIND_INTERNAL
        span.start_time_unix_nano, span.end_time_unix_nano = now_ns - 10**6, now_ns
        if rank == failed:
            span.status.code = Status.STATUS_CODE_ERROR
    return request.SerializeToString()


def post(endpoint: str, body: bytes) -> None:
    """Sends one request until it is taken, as an agent does."""
    wait_until(lambda: _answer(endpoint, body) == 200, what="an answer to a request")


def _answer(endpoint: str, body: bytes) -> int:
    kind = {"Content-Type": "application/x-protobuf"}
    url = f"{endpoint}/v1/traces"
    return urllib3.request("POST", url, body=body, headers=kind, timeout=60.0).status


def new_trace_ids(count: int) -> list[bytes]:
    """Ids that no other trace has."""
    return [os.urandom(16) for _ in range(count)]
