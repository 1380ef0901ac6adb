"""Findings of a running run are in its trace, and a metric for as long as they hold."""

from __future__ import annotations

import json

import pytest
from by_hand import agent_folder, table
from told_sensors import Told, machine

from otel_mlperf import ids, names
from otel_mlperf.agent.derivation.held_findings import publish_findings, start_finding
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.events import Mark, WarningHeld
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.sensors.measurement import Measurement

S = 10**9
JOURNAL = "0-1-1.journal"


def full(*times):
    """A disk that is as full as that."""
    return [[Measurement(names.FILESYSTEM_UTILIZATION.name, {names.MOUNTPOINT: "/data"}, share)]
            for share in times]  # fmt: skip


def warned(program, journals, *shares):
    """An agent that has read a disk as often."""
    tail = Tail(journals, {program.journal.path: program.journal.buffer})
    sensor = Told(*full(*shares))
    agent = Agent(
        agent_folder(program.meta), tail, Options(policy=Policy()), machine(filesystem=sensor)
    )
    for _ in shares:
        agent._readings._due_s = 0.0
        agent.tick()
    return agent


def found_spans(run_folder):
    return [row for row in table(run_folder, "spans") if row["name"] == names.SPAN_FINDING]


def test_a_finding_is_one_span_in_the_trace_of_the_run(program, journals, run_folder):
    """When it begins, whatever it does later: what it is, of what, how grave, what to do."""
    agent = warned(program, journals, 0.96, 0.99, 0.97)
    agent.mark()
    agent.finish()

    (row,) = found_spans(run_folder)
    trace = f"{ids.run_trace_id(program.meta.run_id, 0):032x}"
    assert (row["trace_id"], row["parent_id"]) == (trace, f"{program.run:016x}")
    assert row["start_ns"] == row["end_ns"] > program.meta.unix_ns
    assert row["status"] == "unset"
    told = json.loads(row["attributes"])
    assert told.pop(names.FINDING_ACTION).startswith("Remove old checkpoints")
    assert told == {
        names.FINDING_ID: "disk_full",
        names.FINDING_SEVERITY: "warning",
        names.FINDING_SUMMARY: "the disk of the run folder (/data) is 96% full",
        names.FINDING_VALUE: 0.96,
        names.FINDING_THRESHOLD: 0.95,
        names.MOUNTPOINT: "/data",
    }


def test_an_agent_that_goes_on_says_no_finding_again(program, journals, run_folder):
    """What one has seen, the next makes again from the log, under the same id, and once."""
    killed = warned(program, journals, 0.96, 0.96)
    del killed
    agent = warned(program, journals, 0.96)
    agent.mark()
    agent.finish()

    assert len(found_spans(run_folder)) == 1


@pytest.fixture
def state(program, agent_of):
    """What an agent knows that has looked at the journal of one rank."""
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    yield agent._state
    agent.finish()


def held(end_ns, journal=JOURNAL, id="data_loading", **labels):
    return WarningHeld(id, journal, labels, 100 * S, end_ns, 0.5, 0.3)


def series(owner):
    """Labels of those that have a value."""
    return [
        one.labels
        for one in owner.series.values()
        if one.metric == names.FINDING.name and not one.gone
    ]


def test_the_metric_holds_as_long_as_the_finding(state):
    """And for half a minute, in which it may hold again."""
    (rank,) = state.ranks.values()
    labels = {names.FINDING_ID: "data_loading", names.FINDING_SEVERITY: "warning"}
    start_finding(state, held(105 * S))
    seen = []
    for now_s in (106, 135, 136):
        publish_findings(state, Mark(0, now_s * S, {}))
        seen.append(series(rank))

    assert seen == [[labels], [labels], []]
    assert state.findings == {}


def test_a_finding_of_the_node_is_a_series_of_the_node(state):
    """With the labels of what it is of; none of a rank."""
    (rank,) = state.ranks.values()
    start_finding(state, held(105 * S, "", "disk_full", **{names.MOUNTPOINT: "/data"}))
    publish_findings(state, Mark(0, 106 * S, {}))

    (labels,) = series(state)
    assert labels == {
        names.FINDING_ID: "disk_full",
        names.FINDING_SEVERITY: "warning",
        names.MOUNTPOINT: "/data",
    }
    assert series(rank) == []


def test_what_the_table_does_not_know_is_no_finding(state):
    """It is of another version, or of a process that has left."""
    assert start_finding(state, held(105 * S, id="of_tomorrow")) is None
    assert start_finding(state, held(105 * S, journal="9-9-9.journal")) is None
    assert state.findings == {}
