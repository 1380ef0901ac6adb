"""A process that a loader has forked is a worker immediately, despite any interruption."""

from __future__ import annotations

import os

from interrupted_calls import interruptions

from otel_mlperf.pytorch import loading
from otel_mlperf.pytorch.loading.loader_figures import WorkerCounts
from otel_mlperf.pytorch.loading.loader_gates import LoaderGates


def test_a_worker_that_is_interrupted_as_it_begins_counts_where_its_parent_reads():
    """Done again it does what was left over, and nothing twice."""
    counts = WorkerCounts(2)
    gates = LoaderGates(lambda: None)

    def begin():
        for gate in gates.all:
            gate.busy = False
        gates.thread.started, gates.inherited = counts, None
        gates._pid = os.getpid() + 1  # as in a child
        gates.in_child()

    moments = 0
    for moment, raised, arrived in interruptions(loading, KeyboardInterrupt, begin):
        assert arrived is raised, moment.where
        gates.in_child()
        busy = [gate.name for gate in gates.all if gate.busy]
        assert gates.inherited is counts, moment.where
        assert gates.thread.started is None, moment.where
        assert busy == ["iterator", "pass", "ask", "pin"], moment.where
        moments += 1
    assert moments > 3
