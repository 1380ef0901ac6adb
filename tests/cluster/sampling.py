"""Are traces whole behind tail sampling, with load balancing by trace id and without?"""

from __future__ import annotations

import re
from collections import Counter

import pytest
import urllib3
from cluster import sent
from cluster.stored import stored_spans
from servers.running import wait_until

RANKS = 64
STEPS = 40
"""Every second of them has an error, at one rank."""


@pytest.fixture
def samplers(chain):
    """Two gateways that keep traces with an error."""
    made = [chain.gateway("tail-sampling") for _ in range(2)]
    for one in made:
        one.start()
    yield made
    for one in made:
        one.stop()


@pytest.fixture
def node(chain):
    """Starts a node's Collector before some gateways."""
    made = []

    def start(gateways):
        made.append(chain.node_before(gateways))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.stop()


def decided(gateway) -> int:
    """How many traces a gateway has decided on."""
    said = urllib3.request("GET", gateway.metrics, timeout=10.0).data.decode()
    counts = re.findall(
        r"^otelcol_processor_tail_sampling_global_count_traces_sampled\S*\{.*\} (\S+)$", said, re.M
    )
    return sum(int(float(one)) for one in counts)


def send_steps(nodes) -> list[bytes]:
    """Steps of 64 ranks, half of them by each node's Collector; the traces with an error."""
    traces = sent.new_trace_ids(STEPS)
    half = RANKS // 2
    for number, trace in enumerate(traces):
        failed = 5 if number % 2 else -1
        for node, ranks in zip(nodes, (range(half), range(half, RANKS)), strict=True):
            sent.post(node.otlp_http, sent.step_of_ranks(trace, ranks, failed))
    return traces[1::2]


def spans_of(chain, traces) -> Counter[str]:
    """How many different spans of each trace are stored."""
    wanted = {trace.hex() for trace in traces}
    found = stored_spans(chain.opensearch.url, sent.SIMULATED)
    return Counter(one.trace_id for one in found if one.trace_id in wanted)


def test_balanced_traces_are_whole(chain, samplers, node):
    """Each node sends a trace to the same gateway: all 20 that are kept have all 64 ranks."""
    failed = send_steps([node(samplers), node(samplers)])

    wait_until(lambda: sum(map(decided, samplers)) >= STEPS, what="decisions")
    whole = dict.fromkeys((trace.hex() for trace in failed), RANKS)
    wait_until(lambda: spans_of(chain, failed) == whole, what="20 whole traces")


def test_unbalanced_traces_are_halves(chain, samplers, node):
    """Each node sends to a gateway of its own: of 20 that are kept none is whole."""
    failed = send_steps([node([gateway]) for gateway in samplers])

    wait_until(lambda: sum(map(decided, samplers)) >= 2 * STEPS, what="decisions")
    halves = dict.fromkeys((trace.hex() for trace in failed), RANKS // 2)
    wait_until(lambda: spans_of(chain, failed) == halves, what="20 halves")
