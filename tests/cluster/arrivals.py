"""What of a run has arrived in the stores, and how often?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cluster import sent
from cluster.stored import StoredSpan, stored_spans
from servers.answers import promql
from servers.running import wait_until

if TYPE_CHECKING:
    from cluster.chain import Chain
    from load import loads

LATER = 64
"""Traces that are sent after a run's: so many that some are in each partition of Kafka."""


def settled(one: loads.Under) -> set[StoredSpan]:
    """What the run holds, once its ranks and its agent have ended."""
    one.wait()
    one.settle()
    recorded = sent.recorded_spans(one)
    assert len(recorded) == one.made  # as the ranks themselves have counted
    return recorded


def send_later(chain: Chain) -> set[str]:
    """Sends what lies behind all of a run in each partition; its traces."""
    traces = sent.new_trace_ids(LATER)
    for trace in traces:
        sent.post(chain.node.otlp_http, sent.step_of_ranks(trace, range(1), -1))
    return {trace.hex() for trace in traces}


def arrived(chain: Chain, one: loads.Under, later: set[str], times: int = 1) -> Counter[StoredSpan]:
    """How often each span of the run is stored, once what was sent later is, so many times.

    A partition is read in order: what is missing then does not come any more.
    """
    url = chain.opensearch.url

    def is_there() -> bool:
        found = stored_spans(url, sent.SIMULATED)
        often = Counter(span.trace_id for span in found.elements() if span.trace_id in later)
        return all(often[trace] >= times for trace in later)

    wait_until(is_there, what="what was sent after the run")
    return stored_spans(url, sent.service_of(one))


def wait_for_steps(chain: Chain, one: loads.Under) -> None:
    """Until Prometheus counts as many steps of each rank, under its label, as the run holds."""
    service = sent.service_of(one)
    query = f'ml_training_steps_total{{service_name="{service}"}}'
    made = sent.recorded_steps(one)
    wait_until(lambda: _by_rank(chain, query) == made, what=f"{made} steps of each rank")


def _by_rank(chain: Chain, query: str) -> dict[str, float]:
    found = promql(chain.prometheus.url, query)
    return {one.labels["ml_distributed_rank"]: one.value for one in found}
