"""Ended steps are derived correctly, from journal to tables."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from by_hand import Program, accounts, adds_up, table

from otel_mlperf import names


def test_every_step_is_measured_and_few_are_kept(program, agent_of, run_folder) -> None:
    """All steps are in the table; the spans are those of the first five and of each hundredth."""
    for i in range(250):
        program.step(i * 10, payload={"n": 64})
    program.stop(2600)
    agent_of(program).run()

    steps = table(run_folder, "steps")
    assert [s["n"] for s in steps] == list(range(250))
    assert {(s["duration_ns"], s["self_ns"], s["samples"]) for s in steps} == {
        (10_000_000, 1_000_000, 64)
    }
    kept = [s["n"] for s in steps if s["kept"]]
    assert kept == [0, 1, 2, 3, 4, 100, 200]
    spans = Counter(s["name"] for s in table(run_folder, "spans"))
    assert spans == {"train.step": 7, "data.load": 7, "forward": 7, "run": 1}


def test_sections_of_a_step_add_up_to_it(program, agent_of, run_folder) -> None:
    """Self times of a step's rows and of the step itself are its duration, nesting included."""
    step = program.begin_step(0)
    outer = 900
    program.section("inner", 3, 5, parent=outer, root=step)
    program.section("inner", 5, 6, parent=outer, root=step)
    program.section("outer", 2, 8, parent=step, root=step, span=outer)
    program.section("writer", 1, 9, parent=step, root=step, track=99)
    program.end_step(step, 0, 10)
    program.stop(20)
    agent_of(program).run()

    rows = {r["name"]: r for r in table(run_folder, "sections") if r["n"] is not None}
    assert (rows["inner"]["count"], rows["inner"]["self_ns"]) == (2, 3_000_000)
    assert (rows["outer"]["self_ns"], rows["outer"]["sum_ns"]) == (3_000_000, 6_000_000)
    assert rows["writer"]["beside"]
    (own,) = table(run_folder, "steps")
    inside = sum(r["self_ns"] for r in rows.values() if not r["beside"])
    assert inside + own["self_ns"] == own["duration_ns"] == 10_000_000


def test_a_steps_span_says_what_of_it_is_no_part_of_its_time(program, agent_of, run_folder) -> None:
    """A validation inside, say: whoever has the span alone can tell what all others tell."""
    program.step(0, payload={"x": 4_000_000})
    program.step(10)
    program.stop(30)
    agent_of(program).run()

    spans = [s for s in table(run_folder, "spans") if s["name"] == "train.step"]
    outside = [json.loads(s["attributes"]).get(names.STEP_OUTSIDE) for s in spans]
    took = [s["duration_ns"] for s in table(run_folder, "steps")]
    assert (outside, took) == ([4_000_000, None], [6_000_000, 10_000_000])


def test_kept_spans_form_the_tree_that_was_recorded(program, agent_of, run_folder) -> None:
    """Parents, trace, times and the link of a step to the run's trace are those recorded."""
    epoch = 800
    step = program.begin_step(5, parent=epoch)
    forward = program.section("forward", 6, 9, parent=step, root=step, category="forward")
    program.end_step(step, 5, 10, payload={"a": {"ml.training.epoch": 3}, "n": 2})
    program.section("train.epoch", 1, 12, span=epoch, category="epoch")
    program.stop(20)
    agent_of(program).run()

    spans = {s["name"]: s for s in table(run_folder, "spans")}
    assert spans["forward"]["parent_id"] == spans["train.step"]["span_id"] == f"{step:016x}"
    assert spans["forward"]["span_id"] == f"{forward:016x}"
    assert spans["train.step"]["parent_id"] == ""
    assert spans["train.epoch"]["parent_id"] == spans["run"]["span_id"]
    run_trace = spans["run"]["trace_id"]
    assert json.loads(spans["train.step"]["links"]) == [[run_trace, f"{epoch:016x}"]]
    assert spans["train.step"]["epoch"] == 3
    assert spans["forward"]["start_ns"] == 1_700_000_000_006_000_000
    assert spans["forward"]["thread"] == "MainThread"
    assert spans["forward"]["thread_id"] == 4242


def test_cancelled_step_leaves_no_trace(program, agent_of, run_folder) -> None:
    """A step opened for a batch that never came counts nowhere; its children go to the run."""
    program.step(0)
    gone = program.begin_step(10)
    program.section("fetch", 10, 11, parent=gone, root=gone)
    program.journal.put(10, 11, gone, program.run, gone, 11, program.name("train.step"), 3)
    program.stop(20)
    agent_of(program).run()

    assert len(table(run_folder, "steps")) == 1
    (fetch,) = [s for s in table(run_folder, "spans") if s["name"] == "fetch"]
    assert fetch["parent_id"] == f"{program.run:016x}"


def test_slow_and_failed_steps_are_kept(program, agent_of, run_folder) -> None:
    """A step over twice the median, and one with an error, is kept whatever its number."""
    at = 0.0
    for i in range(60):
        length = 50.0 if i == 33 else 10.0
        program.step(at, length, error=i == 44)
        at += length
    program.stop(at + 1)
    agent_of(program).run()

    assert {s["n"]: s["kept"] for s in table(run_folder, "steps") if s["n"] > 4 and s["kept"]} == {
        33: "slow",
        44: "error",
    }


@pytest.mark.parametrize(
    ("payload", "column"),
    [
        ({"n": 1 << 63}, "samples"),
        ({"t": 2.5}, "tokens"),
        ({"a": {names.TRAINING_EPOCH: "first"}}, "epoch"),
        ({"a": {names.TRAINING_EPOCH: True}}, "epoch"),
    ],
    ids=["too large", "no integer", "text", "switch"],
)
def test_number_that_is_none_is_absent_and_stops_nothing(
    program, agent_of, run_folder, payload, column
) -> None:
    """What a program calls a count or an epoch and is no such number is left out of its step."""
    program.step(0, payload=payload)
    program.step(10, payload={"n": 64, "t": 128, "a": {names.TRAINING_EPOCH: 3}})
    program.stop(30)
    agent_of(program).run()

    fields = ("samples", "tokens", "epoch")
    bad, good = table(run_folder, "steps")
    assert bad[column] is None
    assert [good[field] for field in fields] == [64, 128, 3]
    steps = [s for s in table(run_folder, "spans") if s["name"] == "train.step"]
    assert [s["epoch"] for s in steps] == [None, 3]


def test_ranks_of_a_step_share_its_trace(journals, run_folder, agent_of) -> None:
    """Two ranks' steps are roots of one trace, each with its own id, and kept alike."""
    ranks = [Program(journals, run_folder, rank, world=2) for rank in (0, 1)]
    for rank in ranks:
        for i in range(120):
            rank.step(i * 10)
        rank.stop(1300)
    agent_of(*ranks).run()

    steps = [s for s in table(run_folder, "spans") if s["name"] == "train.step"]
    traces: dict[str, set[int]] = {}
    for step in steps:
        assert step["parent_id"] == ""
        traces.setdefault(step["trace_id"], set()).add(step["rank"])
    assert len(traces) == 6
    assert set(map(frozenset, traces.values())) == {frozenset({0, 1})}
    assert len({s["span_id"] for s in steps}) == len(steps)
    for rank in ranks:
        rank.journal.release()


def test_section_that_outlives_its_step_ran_beside_it(program, agent_of, run_folder) -> None:
    """A generator that feeds the loop takes no share of the step in which it began."""
    step = program.begin_step(0)
    program.section("forward", 1, 9, parent=step, root=step)
    program.end_step(step, 0, 10)
    program.section("reader", 0, 500, parent=step, root=step)
    program.stop(600)
    agent_of(program).run()

    rows = {r["name"]: r["beside"] for r in table(run_folder, "sections") if r["n"] is not None}
    assert rows == {"forward": False, "reader": True}


def test_rank_that_was_not_chosen_sends_its_step_alone(journals, run_folder, agent_of) -> None:
    """Of many ranks' sections only the chosen ones' are spans; the rest is measured."""
    rank = Program(journals, run_folder, rank=999, world=100_000)
    rank.step(0)
    rank.stop(20)
    agent_of(rank).run()
    rank.journal.release()

    assert [s["name"] for s in table(run_folder, "spans")] == ["train.step", "run"]
    account = accounts(run_folder)["spans"]["store"]
    assert (account["created"], account["unselected"]) == (4, 2)
    assert adds_up(account)


def test_profiled_steps_are_kept_and_none_is_interrupted(program, agent_of, run_folder) -> None:
    """A step with the profiler's flag is kept with its sections, and is not taken for a victim."""
    for i in range(60):
        program.step(10.0 * i, profiled=i in {33, 34})
    program.stop(601)
    agent_of(program).run()

    kept = {s["n"]: s["kept"] for s in table(run_folder, "steps") if s["n"] > 4 and s["kept"]}
    spans = [s for s in table(run_folder, "spans") if s["kept"] == "profiled"]
    assert kept == {33: "profiled", 34: "profiled"}
    assert Counter(s["name"] for s in spans) == dict.fromkeys(
        ("train.step", "data.load", "forward"), 2
    )
    assert not any(s["interrupted"] for s in spans)


def test_productive_is_training_that_did_not_fail_and_did_not_wait(program, agent_of) -> None:
    """Of 10 ms each step waits 2; validation and a failed step are not what the run is made for.

    Nor is what is compiled in a step.
    """
    for i in range(4):
        program.step(i * 10, error=i == 3)
    program.step(50, phase="validate")
    span = program.begin_step(70, phase="predict")
    program.section("compile", 71, 74, parent=span, root=span, phase="predict",
                    category=names.COMPILE)  # fmt: skip
    program.end_step(span, 70, 80, phase="predict")
    program.stop(90)
    agent = agent_of(program)
    agent.run()

    (rank,) = agent._state.ranks.values()
    (series,) = (one for one in rank.series.values() if one.metric == names.RUN_PRODUCTIVE.name)
    assert round(series.value * 1000) == 3 * 8 + 7


def _wait_with_parts(program) -> None:
    """A step that waits 8 of its 10 ms for data; its loader has sections, a nested one too."""
    step, wait, decode = program.begin_step(0), 900, 901
    loading = {"category": names.DATA_LOADING}
    program.section("resize", 2, 5, parent=decode, root=step)
    program.section("decode", 1, 6, parent=wait, root=step, span=decode)
    program.pause(6, 7)
    program.section("collate", 7, 8, parent=wait, root=step, **loading)
    program.section("data.load", 0, 8, parent=step, root=step, span=wait, **loading)
    program.section("decode", 8, 9, parent=step, root=step)
    program.end_step(step, 0, 10)


def test_a_wait_for_data_contains_what_the_loader_does(program, agent_of, run_folder) -> None:
    """Sections of the loader are its parts and take nothing from it; a garbage collection does.

    The rows of the step still add up to it.
    """
    _wait_with_parts(program)
    program.stop(20)
    agent_of(program).run()

    rows = [r for r in table(run_folder, "sections") if r["n"] is not None]
    own = {r["name"]: r["self_ns"] for r in rows if not r["beside"]}
    assert own == {"data.load": 7_000_000, "gc.collect": 1_000_000, "decode": 1_000_000}
    parts = {r["path"]: (r["parent"], r["self_ns"], r["sum_ns"]) for r in rows if r["beside"]}
    assert parts == {
        "data.load/decode": ("data.load", 2_000_000, 5_000_000),
        "data.load/resize": ("data.load", 3_000_000, 3_000_000),
        "data.load/collate": ("data.load", 1_000_000, 1_000_000),
    }
    (step,) = table(run_folder, "steps")
    assert sum(own.values()) + step["self_ns"] == step["duration_ns"] == 10_000_000


def test_calls_added_up_in_a_wait_are_its_parts(program, agent_of, run_folder) -> None:
    """They take nothing from the wait, be they directly in it or in a section of the loader."""
    step, wait = program.begin_step(0), 900
    loading = program.name("data.load", names.DATA_LOADING)
    decode = program.name("decode")
    read, seek = (
        program.journal.entry(
            ["cell", "aggregate", name, "other", around, "train", of, "", "", True, False, 0]
        )
        for name, around, of in (("read", "data.load", loading), ("seek", "decode", decode))
    )
    program.section("decode", 1, 6, parent=wait, root=step)
    program.section("data.load", 0, 8, parent=step, root=step, span=wait,
                    category=names.DATA_LOADING)  # fmt: skip
    items = [[read, 0, 3, 2_000_000, 0, 1, 2], [seek, 0, 9, 4_000_000, 0, 1, 2]]
    program.end_step(step, 0, 10, payload={"g": items})
    program.stop(20)
    agent_of(program).run()

    rows = [r for r in table(run_folder, "sections") if r["n"] is not None]
    own = {r["name"]: (r["self_ns"], r["parent"] if r["beside"] else None) for r in rows}
    assert own == {
        "data.load": (8_000_000, None),
        "decode": (1_000_000, "data.load"),
        "read": (2_000_000, "data.load"),
        "seek": (4_000_000, "data.load"),
    }
    assert table(run_folder, "steps")[0]["self_ns"] == 2_000_000


def test_a_wait_of_a_loader_with_sections_is_not_productive(program, agent_of) -> None:
    """Of ten milliseconds the loader took seven, a garbage collection in it one more."""
    _wait_with_parts(program)
    program.stop(20)
    agent = agent_of(program)
    agent.run()

    (rank,) = agent._state.ranks.values()
    (series,) = (one for one in rank.series.values() if one.metric == names.RUN_PRODUCTIVE.name)
    assert round(series.value * 1000) == 10 - 7
