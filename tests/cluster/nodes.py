"""Is a run on two nodes one run and one trace a step, and what if a gateway leaves its name?

Each node is a machine with an agent and a Collector of its own, which finds the gateways by the
name of both.
"""

from __future__ import annotations

import pytest
from cluster import sent
from cluster.arrivals import arrived, send_later, wait_for_steps
from cluster.machines import AT_BRIDGE, GATEWAYS, machines, missing
from load import loads
from servers.answers import jaeger_trace
from servers.running import free_ports, wait_until

STEPS = 300
SPANS_A_STEP = 1 + loads.job.PIECES


@pytest.fixture
def hosts(tmp_path):
    """Writes the hosts file of all machines: where the gateways are."""
    file = tmp_path / "hosts"

    def write(*addresses):
        known = ["127.0.0.1 localhost", *(f"{address} {GATEWAYS}" for address in addresses)]
        file.write_text("\n".join(known) + "\n")  # in place: the machines have this very file

    write(*AT_BRIDGE)
    write.file = file
    return write


@pytest.fixture
def two(chain, hosts):
    """Two machines, with a Collector each that knows the gateways by name; and the gateways."""
    if reason := missing():
        pytest.skip(reason)
    with machines(hosts.file) as made:
        (port,) = free_ports(1)
        gateways = chain.gateways_at(AT_BRIDGE, port)
        nodes = [chain.node_on(machine, GATEWAYS, port) for machine in made]
        for server in (*gateways, *nodes):
            server.start()
        yield made, nodes, gateways
        for server in (*nodes, *gateways):
            server.kill()


def start(one, made, nodes):
    """A rank on each machine."""
    arguments = ["--rate", str(sent.SPANS_PER_SECOND), "--count", str(STEPS * SPANS_A_STEP)]
    for rank, (machine, node) in enumerate(zip(made, nodes, strict=True)):
        place = {"RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": node.otlp_http}
        one.start(*arguments, inside=machine.inside, **place, **endpoint)


def settled(one, made):
    """What the run holds, once both agents have left."""
    one.wait()
    run_id = one.variables["OTEL_MLPERF_RUN_ID"]
    for machine in made:
        wait_until(lambda here=machine: here.is_left(run_id), what="an agent to leave")
    recorded = sent.recorded_spans(one)
    assert len(recorded) == one.made
    return recorded


def test_two_nodes_are_one_run(chain, two, told):
    """One folder with both agents' accounts; all ranks of a step are one trace, in Jaeger too."""
    made, nodes, _ = two
    with loads.under("ours", "", **sent.of_one_run(), OTEL_MLPERF_DRAIN_TIMEOUT_S="300") as one:
        start(one, made, nodes)
        recorded = settled(one, made)
        found = arrived(chain, one, send_later(chain))
        told("two nodes, nothing killed", recorded, found)

        assert found.keys() == recorded
        wait_for_steps(chain, one)
        steps = sent.traces_of_steps(one)
        assert {step: len(traces) for step, traces in steps.items()} == dict.fromkeys(steps, 1)
        assert len(steps) == STEPS
        assert len(sent.accounts(one)) == len(made)
        (last,) = steps[max(steps)]
        shown = jaeger_trace(chain.jaeger.url, last)
        assert len(shown) == len(made) * SPANS_A_STEP
        hosts = {
            (span.resource["host.name"], span.resource["ml.distributed.rank"]) for span in shown
        }
        assert hosts == {(machine.name, rank) for rank, machine in enumerate(made)}


def test_a_gateway_that_leaves_its_name_is_not_waited_for(chain, two, hosts, told):
    """Killed for good, and gone from the name: the other one has its traces, nothing is missing."""
    made, nodes, gateways = two
    with loads.under("ours", "", **sent.of_one_run(), OTEL_MLPERF_DRAIN_TIMEOUT_S="300") as one:
        start(one, made, nodes)
        half = STEPS * SPANS_A_STEP
        wait_until(lambda: one.counted > half, what="spans to be made")
        gateways[0].kill()
        hosts(AT_BRIDGE[1])
        recorded = settled(one, made)
        found = arrived(chain, one, send_later(chain))
        told("gateway killed, and gone from its name", recorded, found)

        assert found.keys() == recorded
        wait_for_steps(chain, one)
