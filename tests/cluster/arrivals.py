"""What of a run has arrived in the stores, and how often?"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from cluster import sent
from cluster.stored import StoredSpan, count_stored, stored_spans
from servers.answers import promql
from servers.running import wait_until

if TYPE_CHECKING:
    from cluster.chain import Chain
    from load import loads

QUIET_S = 60.0
"""Nothing has come for so long: what is missing then does not come any more."""
LATER = 64
"""Traces that are sent after a run's: so many that some are in each partition of Kafka."""


def settled(one: loads.Under) -> set[StoredSpan]:
    """What the run holds, once its ranks and its agent have ended."""
    one.wait()
    one.settle()
    recorded = sent.recorded_spans(one)
    assert len(recorded) == one.made  # as the ranks themselves have counted
    return recorded


def arrived(chain: Chain, one: loads.Under) -> Counter[StoredSpan]:
    """How often each span of the run is stored, once what was sent after all of it is there.

    A partition is read in order: what is missing then does not come any more.
    """
    later = sent.new_trace_ids(LATER)
    for trace in later:
        sent.post(chain.node.otlp_http, sent.step_of_ranks(trace, range(1), -1))
    wanted, url = {trace.hex() for trace in later}, chain.opensearch.url
    wait_until(
        lambda: wanted <= {span.trace_id for span in stored_spans(url, sent.SIMULATED)},
        what="what was sent after the run",
    )
    return stored_spans(url, sent.service_of(one))


def read_again(chain: Chain, one: loads.Under, recorded: set[StoredSpan]) -> Counter[StoredSpan]:
    """The same while a new group of consumers reads: once none is missing, or no more come."""
    url, service = chain.opensearch.url, sent.service_of(one)
    before, since, read = -1, time.monotonic(), -1
    found: Counter[StoredSpan] = Counter()
    while True:
        count = count_stored(url, service)
        if count != before:
            before, since = count, time.monotonic()
        elif count != read:  # to read all of them while more come would keep the store busy
            found, read = stored_spans(url, service), count
        if found.keys() == recorded or time.monotonic() - since > QUIET_S:
            return found
        time.sleep(1)


def wait_for_steps(chain: Chain, one: loads.Under) -> None:
    """Until Prometheus counts as many steps of each rank, under its label, as the run holds."""
    service = sent.service_of(one)
    query = f'ml_training_steps_total{{service_name="{service}"}}'
    made = sent.recorded_steps(one)
    wait_until(lambda: _by_rank(chain, query) == made, what=f"{made} steps of each rank")


def _by_rank(chain: Chain, query: str) -> dict[str, float]:
    found = promql(chain.prometheus.url, query)
    return {one.labels["ml_distributed_rank"]: one.value for one in found}
