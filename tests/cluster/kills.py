"""Does every span arrive, with the label of its rank, whatever is killed?

Each test records a real run of two ranks, and compares what OpenSearch holds with what the run's
own folder holds, and the steps in Prometheus with those of the folder. It prints what is missing
and what is stored again; only the first is a promise.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from cluster import sent
from cluster.arrivals import arrived, send_later, settled, wait_for_steps
from cluster.stored import stored_spans
from runs import environment
from servers.running import wait_until

SECONDS = 15
"""How long the ranks record: parts are killed after a third of it, and away for another third."""


def together(*pairs: str):
    """Parts of the chain, each alone or with another, by their names."""
    return pytest.mark.parametrize("killed", pairs)


def kill(chain, one, killed: str) -> None:
    """Kills parts at once when a third of the spans are made; they come back later, in order."""
    wait_for_load(one)
    parts = [chain.part(name) for name in killed.split("+")]
    for part in parts:
        part.kill()
    time.sleep(SECONDS / 3)
    for part in chain.servers:
        if part in parts:
            part.start()


def wait_for_load(one) -> None:
    """Until the ranks have made a third of their spans."""
    third = SECONDS * sent.RANKS * sent.SPANS_PER_SECOND // 3
    wait_until(lambda: one.counted > third, what="spans to be made")


def recovered(runs, endpoint: str) -> bool:
    """Whether ``otel-mlperf doctor --recover`` has delivered all."""
    recover = [sys.executable, "-m", "otel_mlperf", "recover", "latest", "--endpoint", endpoint]
    done = subprocess.run(recover, env=environment(runs), capture_output=True, check=False)
    return done.returncode == 0


def test_ids_and_labels_are_complete(chain, told):
    """Nothing killed: each span is there, and each rank's steps are counted under its label."""
    with sent.training(chain.node.otlp_http, SECONDS) as one:
        recorded = settled(one)
        found = arrived(chain, one, send_later(chain))
        told("nothing killed", recorded, found)

        assert found.keys() == recorded
        wait_for_steps(chain, one)


@together("jaeger", "consumer+jaeger", "jaeger+opensearch")
def test_what_jaeger_held_is_read_again_from_kafka(chain, told, killed):
    """Jaeger's writer answers before OpenSearch has: a new group of consumers brings the rest."""
    with sent.training(chain.node.otlp_http, SECONDS) as one:
        kill(chain, one, killed)
        recorded = settled(one)
        later = send_later(chain)
        told(f"{killed} killed", recorded, arrived(chain, one, later))
        replaying = chain.replaying()
        replaying.start()
        found = arrived(chain, one, later, times=2)
        replaying.kill()
        told("the same, read again from Kafka", recorded, found)

        assert found.keys() == recorded
        wait_for_steps(chain, one)


@together(
    "node", "gateway", "kafka", "consumer", "opensearch", "prometheus",
    "node+gateway", "gateway+kafka", "kafka+consumer", "consumer+opensearch", "consumer+prometheus",
)  # fmt: skip
def test_killed_parts_lose_nothing(chain, told, killed):
    """Killed under load and back a little later, alone or with a neighbour: nothing is missing."""
    with sent.training(chain.node.otlp_http, SECONDS) as one:
        kill(chain, one, killed)
        recorded = settled(one)
        found = arrived(chain, one, send_later(chain))
        told(f"{killed} killed", recorded, found)

        assert found.keys() == recorded
        wait_for_steps(chain, one)


def test_what_waits_for_a_gateway_is_kept(chain, told):
    """A listed gateway is gone for longer than an agent waits: the run's folder keeps the rest."""
    with sent.training(chain.node.otlp_http, SECONDS, OTEL_MLPERF_DRAIN_TIMEOUT_S="5") as one:
        wait_for_load(one)
        chain.gateways[0].kill()
        recorded = settled(one)
        account = one.account
        told("gateway gone", recorded, stored_spans(chain.opensearch.url, sent.service_of(one)))
        chain.gateways[0].start()
        # The node's Collector connects again when gRPC has waited: some wait until then.
        wait_until(
            lambda: recovered(one.runs, chain.node.otlp_http), what="all that waits to be delivered"
        )
        found = arrived(chain, one, send_later(chain))
        told("the same, back and recovered", recorded, found)

        assert account["pending"] > 0
        assert account["lost"] == {}
        assert found.keys() == recorded
        wait_for_steps(chain, one)
