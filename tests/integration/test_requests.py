"""p50, p95 and p99 of requests are exact, in the terminal and in a real Prometheus."""

from __future__ import annotations

import json
import math
import sys
import uuid

import pytest
import warm_python
from runs import environment, run_program
from servers.running import NotYet, wait_until

from otel_mlperf import names

pytestmark = pytest.mark.servers

REQUESTS, BOUND_NS = 100_000, 50_000_000
METRIC = names.SECTION_DURATION.prometheus


@pytest.fixture(scope="module")
def served(servers, tmp_path_factory):
    """How long each took, what summary and periods say of them, and under which name."""
    place, service = tmp_path_factory.mktemp("serving"), uuid.uuid4().hex
    ended = run_program(
        place / "runs", program="serving.py",
        OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint, OTEL_METRIC_EXPORT_INTERVAL="500",
        OTEL_SERVICE_NAME=service,
    )  # fmt: skip
    assert ended.code == 0, ended.errors
    ended.settled()
    (told,) = (call for call in answer(ended, "summary")["calls"] if call["name"] == "predict")
    cut = answer(ended, "summary", "--every", "1m")["periods"]
    return sorted(json.loads(ended.count.read_text())), told, cut, service


def answer(ended, *command):
    """What a command says of the run, as JSON."""
    asked = [sys.executable, "-m", "otel_mlperf", *command, str(ended.folder), "--json"]
    return json.loads(warm_python.check_output(asked, env=environment(ended.runs), text=True))


def exact(took, share):
    """The one that so many are not above."""
    return took[math.ceil(share * len(took)) - 1]


def test_terminal(served):
    """Requests in threads and tasks: quantiles within the error that is said, the rest exact."""
    took, told, *_ = served
    shares = {"p50_ns": 0.5, "p95_ns": 0.95, "p99_ns": 0.99}

    assert len(took) == told["count"] == REQUESTS
    assert 0 < told["error_ratio"] < 0.1
    for key, share in shares.items():
        assert told[key] == pytest.approx(exact(took, share), rel=told["error_ratio"]), key
    assert (told["sum_ns"], told["min_ns"], told["max_ns"]) == (sum(took), took[0], took[-1])
    assert told["within"] == sum(length <= BOUND_NS for length in took)


def test_by_the_minute(served):
    """They took minutes, and all minutes together have each of them."""
    took, told, cut, _ = served
    minutes = [one for period in cut for one in period["requests"]]

    assert len(minutes) > 5
    for figure in ("count", "sum_ns", "within", "errors"):
        assert sum(one[figure] for one in minutes) == told[figure], figure
    assert max(one["max_ns"] for one in minutes) == took[-1]


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_prometheus(served, servers, share):
    """A native histogram of the same buckets gives the same quantiles."""
    took, told, _, service = served
    which = f'{METRIC}{{service_name="{service}",ml_section_category="request"}}'
    counted = f"histogram_count(last_over_time({which}[1h]))"
    asked = f"histogram_quantile({share}, last_over_time({which}[1h]))"

    def all_are_there():
        found = servers.promql(counted)
        return [sample.value for sample in found] == [REQUESTS] or NotYet(found)

    wait_until(all_are_there, what="all requests in Prometheus")
    (answer,) = servers.promql(asked)
    assert answer.value * 1e9 == pytest.approx(exact(took, share), rel=told["error_ratio"])
    assert answer.value * 1e9 == pytest.approx(told[f"p{share * 100:.0f}_ns"], rel=1e-6)


def test_share_within_the_bound_in_prometheus(served, servers):
    """The counter over the histogram's count is the share that the terminal has."""
    _, told, _, service = served
    which = f'{names.SECTION_WITHIN.prometheus}{{service_name="{service}"}}'

    (counted,) = wait_until(lambda: servers.promql(f"last_over_time({which}[1h])"), what=which)
    assert counted.value == told["within"]
