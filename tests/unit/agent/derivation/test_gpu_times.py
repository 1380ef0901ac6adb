"""The GPU time of every call is counted, and sampled spans have it."""

from __future__ import annotations

import itertools
import json
import statistics

import pytest
from by_hand import MS, TRACK, accounts, adds_up, table

from otel_mlperf import names
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.journal.contents import DeviceTimes, SectionTimes
from otel_mlperf.journal.layout import Flag, Kind

key = itertools.count(1 << 50).__next__


def tell(program, root, *sections, is_step=True, is_mixed=False, host=1_000, low=1_000, high=1_100):
    """Tells of sections: span, name, begin and end on the device (ms), given 1 ms before that."""
    told = [
        SectionTimes(
            span, program.name(*name), True, int((begin - 1) * MS), int((end - 1) * MS),
            int(begin * MS), int(end * MS),
        )
        for span, name, begin, end in sections
    ]  # fmt: skip
    times = DeviceTimes(root, 0, is_step, is_mixed, host, 0, low, high, told)
    program.journal.payload(key(), {"d": times})


STEP = ("train.step", names.STEP)
FORWARD = ("forward", names.FORWARD)


def step(program, start, length=10.0):
    """A step whose row says that it will be told when a GPU was in it."""
    root = program.begin_step(start)
    span = program.section("forward", start + 1, start + 2, parent=root, root=root,
                           category=names.FORWARD)  # fmt: skip
    put = program.journal.put
    flags = Kind.SECTION | Flag.ON_DEVICE
    put(int(start * MS), int((start + length) * MS), root, program.run, root, TRACK,
        program.name(*STEP), flags)  # fmt: skip
    program.sections += 1
    return root, span


def spans(run_folder, name):
    rows = (row for row in table(run_folder, "spans") if row["name"] == name)
    return [json.loads(row["attributes"]) for row in rows]


def pending(agent):
    return agent._processor.accounts.report({"spans/store": 0})["spans"]["store"]["pending"]


def test_every_call_counts(program, agent_of, run_folder):
    """Count, total, extremes and variance are those of all steps, also of those not kept."""
    took = []
    for i in range(300):
        root, span = step(program, i * 20)
        took.append((i % 7 + 1) * MS)
        tell(program, root, (root, STEP, 0, 12), (span, FORWARD, 2, 2 + i % 7 + 1))
    program.stop(10_000)
    agent_of(program, policy=Policy(trace_first=1, trace_every=1000)).run()

    rows = [row for row in table(run_folder, "resources") if row["name"] == "forward"]
    assert {row["measure"] for row in rows} == {names.GPU_NS.key}
    (row,) = rows
    assert (row["count"], row["total"], row["least"], row["most"]) == (300, sum(took), MS, 7 * MS)
    assert row["spread"] == pytest.approx(statistics.pvariance(took) * 300)
    assert row["in_step"]
    assert len(table(run_folder, "gpu_steps")) == 300


def test_a_step_on_its_device(program, agent_of, run_folder):
    """Its GPU time, what of it no section covers, and who set the pace, as row and series."""
    root, span = step(program, 0)
    tell(program, root, (root, STEP, 0, 12), (span, FORWARD, 2, 11))
    program.stop(100)
    agent = agent_of(program)
    agent.run()

    (row,) = table(run_folder, "gpu_steps")
    assert (row["gpu_ns"], row["idle_ns"]) == (12 * MS, 3 * MS)
    # Each mark was passed 1 ms after it was given: it stood behind other work.
    assert (row["host_paced_ns"], row["device_paced_ns"]) == (0, 12 * MS)
    assert (row["phase"], row["n"], row["number"], row["device"]) == ("train", 0, 100, 0)
    (rank,) = agent._state.ranks.values()
    values = {series.metric: series.value for series in rank.series.values()}
    assert values[names.STEP_GPU.name] == 0.012
    assert values[names.STEP_GPU_IDLE.name] == 0.003


def test_spans_wait_for_their_gpu_time(program, agent_of, run_folder):
    """Those of a kept step are sent once it is told, with what is told; the accounts add up."""
    root, span = step(program, 0)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    assert pending(agent) == 2
    tell(program, root, (root, STEP, 0, 12), (span, FORWARD, 2, 11))
    program.stop(100)
    agent.run()

    (forward,) = spans(run_folder, "forward")
    assert forward[names.GPU_NS.attribute] == 9 * MS
    (own,) = spans(run_folder, "train.step")
    assert own[names.GPU_NS.attribute] == 12 * MS
    assert own[names.GPU_IDLE] == 3 * MS
    assert own[names.PACED_BY] == "device"
    assert adds_up(accounts(run_folder)["spans"]["store"])


def test_spans_do_not_wait_for_ever(program, agent_of, run_folder):
    """Where nothing is told they go without after some marks, and at the end of the run."""
    step(program, 0)
    agent = agent_of(program)
    for _ in range(22):
        agent.tick()
        agent.mark()
    assert pending(agent) == 0
    step(program, 20)
    program.stop(100)
    agent.run()

    assert [names.GPU_NS.attribute in span for span in spans(run_folder, "forward")] == [False] * 2
    assert adds_up(accounts(run_folder)["spans"]["store"])


def test_outside_steps_by_place(program, agent_of, run_folder):
    """A section outside steps counts at its path, told however late."""
    outer = 900
    put = program.journal.put
    put(MS, 2 * MS, 901, outer, program.run, TRACK, program.name(*FORWARD),
        Kind.SECTION | Flag.ON_DEVICE)  # fmt: skip
    program.section("outer", 0, 5, span=outer)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    tell(program, program.run, (901, FORWARD, 3, 7), is_step=False)
    program.stop(20)
    agent.run()

    (row,) = (row for row in table(run_folder, "resources") if row["name"] == "forward")
    assert (row["path"], row["in_step"], row["total"]) == ("outer/forward", False, 4 * MS)


def test_a_step_that_holds_what_is_none_of_it(program, agent_of, run_folder):
    """Of a step with a checkpoint inside only its sections have GPU time."""
    root, span = step(program, 0)
    tell(program, root, (root, STEP, 0, 12), (span, FORWARD, 2, 11), is_mixed=True)
    program.stop(100)
    agent_of(program).run()

    assert not table(run_folder, "gpu_steps")
    assert names.GPU_NS.attribute not in spans(run_folder, "train.step")[0]
    assert spans(run_folder, "forward")[0][names.GPU_NS.attribute] == 9 * MS
