"""Does every span arrive, with the label of its rank, also when Kafka is killed?

Each test records a real run of two ranks, and compares what OpenSearch holds with what the run's
own folder holds. It prints what is missing and what is stored again; only the first is a promise.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from cluster import sent
from cluster.stored import StoredSpan, stored_spans
from servers.answers import promql
from servers.running import wait_until

if TYPE_CHECKING:
    from collections import Counter

SECONDS = 30
"""How long the ranks record: a part is killed after a third of it, and away for another third."""
QUIET_S = 60.0
"""Nothing has come for so long: what is missing then does not come any more."""


@pytest.fixture
def told(request):
    """Prints a line: what is missing of a run, and what is stored again."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def tell(recorded, found):
        again = found.total() - len(found)
        with capture.global_and_fixture_disabled():
            print(
                f"\n{request.node.name}: {len(recorded):,} spans, "
                f"{len(recorded - found.keys()):,} missing, {again:,} stored again",
                flush=True,
            )

    return tell


def wait_for_load(one) -> None:
    """Until the ranks have made a third of their spans."""
    third = SECONDS * sent.RANKS * sent.SPANS_PER_SECOND // 3
    wait_until(lambda: one.counted > third, what="spans to be made")


def settled(one) -> set[StoredSpan]:
    """What the run holds, once its ranks and its agent have ended."""
    one.wait()
    one.settle()
    recorded = sent.recorded_spans(one)
    assert len(recorded) == one.made  # as the ranks themselves have counted
    return recorded


def arrived(chain, one, recorded) -> Counter[StoredSpan]:
    """How often each span of the run is stored, once all are there or no more come."""
    before, since = -1, time.monotonic()
    while True:
        found = stored_spans(chain.opensearch.url, one.variables["OTEL_SERVICE_NAME"])
        if found.total() != before:
            before, since = found.total(), time.monotonic()
        if found.keys() == recorded or time.monotonic() - since > QUIET_S:
            return found
        time.sleep(1)


def test_ids_and_labels_are_complete(chain, told):
    """Nothing killed: each span is there, and each rank's steps are counted under its label."""
    with sent.training(chain.node.otlp_http, SECONDS) as one:
        recorded = settled(one)
        found = arrived(chain, one, recorded)
        told(recorded, found)

        assert found.keys() == recorded
        service = one.variables["OTEL_SERVICE_NAME"]
        query = f'ml_training_steps_total{{service_name="{service}"}}'
        wait_until(
            lambda: (
                {
                    sample.labels["ml_distributed_rank"]: sample.value
                    for sample in promql(chain.prometheus.url, query)
                }
                == sent.recorded_steps(one)
            ),
            what="the steps of each rank",
        )


def test_killed_kafka_loses_nothing(chain, told):
    """Kafka dies under load and comes back after ten seconds: no span is missing."""
    with sent.training(chain.node.otlp_http, SECONDS) as one:
        wait_for_load(one)
        chain.kafka.kill()
        time.sleep(10)
        chain.kafka.start()
        recorded = settled(one)
        found = arrived(chain, one, recorded)
        told(recorded, found)

        assert found.keys() == recorded
