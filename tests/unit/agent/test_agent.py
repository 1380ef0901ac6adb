"""The agent from journal to run folder, with a program written by hand."""

from __future__ import annotations

import json
import resource
import signal
import time
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from by_hand import MS, Program

from otel_mlperf import ids, names
from otel_mlperf.agent.derivation.segments import segments
from otel_mlperf.agent.model.sampling_policy import Policy
from otel_mlperf.journal.layout import Kind, Word

S = 10**9


def table(run_folder, name):
    rows = []
    for part in sorted((run_folder / "tables" / name).glob("*.parquet")):
        rows += pq.read_table(part).to_pylist()
    return rows


def accounts(run_folder):
    return json.loads((run_folder / "accounting" / "node.json").read_text())


def adds_up(account) -> bool:
    outcomes = ("delivered", "rolled_up", "unselected", "pending")
    total = sum(account[key] for key in outcomes) + sum(account["lost"].values())
    return account["created"] == total


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


def test_account_of_spans_adds_up(program, agent_of, run_folder) -> None:
    """Every section that the program counted is delivered or unselected, none is lost."""
    for i in range(250):
        program.step(i * 10)
    program.stop(2600)
    agent_of(program).run()

    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections == 751
    assert account["delivered"] == 22
    assert adds_up(account)
    assert account["pending"] == 0


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


def test_sections_outside_steps_are_measured_by_path(program, agent_of, run_folder) -> None:
    """A tree without steps comes out as paths with self and total; the rest is counted."""
    for i in range(20):
        outer = 1000 + i
        program.section("read", i * 10 + 1, i * 10 + 4, parent=outer)
        program.section("prepare", i * 10, i * 10 + 8, span=outer)
    program.stop(300)
    agent_of(program).run()

    rows = {r["path"]: r for r in table(run_folder, "sections")}
    assert rows["prepare"]["count"] == rows["prepare/read"]["count"] == 20
    assert rows["prepare"]["self_ns"] == 20 * 5_000_000
    assert rows["prepare/read"]["sum_ns"] == 20 * 3_000_000
    spans = table(run_folder, "spans")
    ids = {s["span_id"] for s in spans}
    assert all(s["parent_id"] in ids for s in spans if s["parent_id"])
    assert adds_up(accounts(run_folder)["spans"]["store"])


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


def test_second_agent_goes_on_without_loss_or_double(program, agent_of, run_folder) -> None:
    """An agent that vanished between two looks is replaced; every row counts once."""
    for i in range(120):
        program.step(i * 10)
    first = agent_of(program)
    first.tick()
    first.mark()
    for i in range(120, 200):
        program.step(i * 10)
    first.tick()
    del first
    program.stop(2100)
    agent_of(program).run()

    assert [s["n"] for s in table(run_folder, "steps")] == list(range(200))
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert adds_up(account)
    ids = [s["span_id"] for s in table(run_folder, "spans")]
    assert len(ids) == len(set(ids))


def test_outcome_of_the_run_is_written(program, agent_of, run_folder) -> None:
    """A failed run says which error ended it, in which step and section."""
    step = program.begin_step(0)
    words = {"e": ["RuntimeError", "out of memory", ""]}
    program.section("forward", 1, 2, parent=step, root=step, error=True, payload=words)
    program.end_step(step, 0, 3, error=True, payload=words)
    program.stop(4, error=True, payload=words)
    agent_of(program).run()

    last = table(run_folder, "processes")[-1]
    assert (last["outcome"], last["error_type"]) == ("failed", "RuntimeError")
    assert (last["error_step"], last["error_section"]) == (100, "forward")


@pytest.mark.parametrize("budget", [50, 200])
def test_over_budget_is_rolled_up_without_losing_time(
    program, agent_of, run_folder, budget
) -> None:
    """A step of a thousand sections keeps the longest; roll-ups hold count and time of the rest."""
    step = program.begin_step(0)
    for i in range(1000):
        program.section("op", i, i + 0.5 + (i % 7) / 20, parent=step, root=step)
    program.end_step(step, 0, 1001)
    program.stop(1100)
    agent_of(program, policy=Policy(spans_per_rank=budget)).run()

    spans = [s for s in table(run_folder, "spans") if s["name"] == "op"]
    assert len(spans) <= budget
    rolled = [json.loads(s["attributes"]) for s in spans if s["kind"] == "rollup"]
    plain = [s["end_ns"] - s["start_ns"] for s in spans if s["kind"] == "section"]
    assert sum(r["otel_mlperf.rolled_up.count"] for r in rolled) + len(plain) == 1000
    total = sum(int((0.5 + (i % 7) / 20) * 1e6) for i in range(1000))
    found = sum(plain) + sum(r["otel_mlperf.rolled_up.sum"] for r in rolled)
    assert found == pytest.approx(total, abs=1000)
    assert adds_up(accounts(run_folder)["spans"]["store"])


def test_late_rows_are_rolled_up_apart(program, agent_of, run_folder) -> None:
    """What other threads add to a step that has ended is a roll-up of its own, with its own id."""
    agent = agent_of(program, policy=Policy(spans_per_rank=4))
    step = program.begin_step(0)
    for at in range(10):
        program.section("read", at, at + 1, parent=step, root=step)
    program.end_step(step, 0, 20)
    agent.tick()
    agent.mark()
    for at in range(10):
        program.section("read", at, at + 1, parent=step, root=step, track=99)
    program.stop(30)
    agent.run()

    spans = table(run_folder, "spans")
    rolled = [json.loads(s["attributes"])[names.ROLLED_UP] for s in spans if s["kind"] == "rollup"]
    assert len(rolled) == 2
    assert sum(rolled) + sum(s["name"] == "read" and s["kind"] == "section" for s in spans) == 20
    assert len({s["span_id"] for s in spans}) == len(spans)


def test_full_store_gives_up_the_oldest_spans_and_counts_them(
    program, agent_of, run_folder
) -> None:
    """Over the limit the oldest span parts go, as lost; every step stays measured."""
    agent = agent_of(program, policy=Policy(keep_every=1), store_bytes=600_000)
    for i in range(3000):
        program.step(i * 10)
        if i % 100 == 99:
            agent.tick()
            agent.mark()
            agent.flush(i)
    program.stop(40_000)
    agent.run()

    account = accounts(run_folder)["spans"]["store"]
    stored = [s for s in table(run_folder, "spans") if s["kind"] == "section"]
    assert len(stored) == account["delivered"] < program.sections
    assert account["lost"] == {"store_full": program.sections - len(stored)}
    assert adds_up(account)
    assert len(table(run_folder, "steps")) == 3000


def test_section_open_for_hours_leaves_segments_once(program, agent_of, run_folder) -> None:
    """Every ten minutes a finished child with an id that follows from the section's."""
    now = time.monotonic_ns()
    span = program.open("train.epoch", now / MS)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    (journal,) = agent._state.journals.values()

    first = segments(journal, now + 1_250 * S)
    again = segments(journal, now + 1_300 * S)
    third = segments(journal, now + 1_800 * S)

    assert [(round((s.start - now) / S), (s.end - s.start) / S, s.parent) for s in first] == [
        (0, 600, span),
        (600, 600, span),
    ]
    assert again == []
    assert len({s.span for s in first + third}) == 3


def test_interrupted_sections_are_spans_once(program, agent_of, run_folder) -> None:
    """Sections open at a death arrive marked; one whose row was already written does not."""
    step = program.begin_step(0)
    program.open("train.step", 0, root=step, span=step)
    program.open("forward", 1, parent=step, root=step)
    done = program.section("backward", 2, 3, parent=step, root=step)
    program.open("backward", 2, parent=step, root=step, span=done)
    program.open("run", 0, span=program.run)
    program.journal.close()
    agent_of(program).run()

    spans = table(run_folder, "spans")
    assert sorted((s["name"], s["interrupted"]) for s in spans) == [
        ("backward", False),
        ("forward", True),
        ("run", True),
        ("train.step", True),
    ]
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == 4
    assert adds_up(account)
    assert table(run_folder, "steps") == []
    assert table(run_folder, "processes")[-1]["outcome"] == "killed"


def test_aggregated_sections_are_totals_and_no_items(program, agent_of, run_folder) -> None:
    """Cells of several threads add up to one row under the enclosing name."""
    number = program.journal.entry(["cell", "aggregate", "tokenize", "other", "data.load", "train"])
    for count, total, least, most in ((10, 500, 20, 90), (5, 100, 10, 40)):
        word = program.journal.cell(number)
        program.journal.words[word + 1] = count
        program.journal.words[word + 2] = total
        program.journal.words[word + 3] = least
        program.journal.words[word + 4] = most
    program.stop(10)
    agent_of(program).run()

    (row,) = [r for r in table(run_folder, "sections") if r["aggregate"]]
    found = {key: row[key] for key in ("name", "parent", "count", "sum_ns", "min_ns", "max_ns")}
    assert found == {
        "name": "tokenize", "parent": "data.load", "count": 15, "sum_ns": 600, "min_ns": 10,
        "max_ns": 90,
    }  # fmt: skip
    assert accounts(run_folder)["spans"]["store"]["created"] == program.sections


def test_logged_values_are_rows(program, agent_of, run_folder) -> None:
    """Each call of log() is a row with the step's number, the time and the exact value."""
    bits = int(np.float64(0.25).view(np.uint64))
    program.journal.put(7 * MS, bits, 0, 103, program.run, 11, program.name("loss"), Kind.VALUE)
    program.stop(10)
    agent_of(program).run()

    (row,) = table(run_folder, "values")
    assert (row["name"], row["number"], row["value"]) == ("loss", 103, 0.25)
    assert row["time_ns"] == 1_700_000_000_007_000_000


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


def test_rows_that_cannot_be_worked_out_are_counted(program, agent_of, run_folder) -> None:
    """A journal with impossible contents costs its own rows, not the agent."""
    program.step(0)
    program.journal.payload(999, ["not", "a", "map"])
    program.section("odd", 11, 12, span=999)
    program._entries["bad", "train"] = program.journal.entry(["section", "bad"])
    program.section("bad", 12, 13)
    program.stop(20)
    agent_of(program).run()

    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert account["lost"] == {"internal": program.sections}
    assert adds_up(account)


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


def test_cells_are_series_under_their_own_names(program, agent_of) -> None:
    """What the recorder and the program count is published as it is called in the journal."""
    for name, kind in (("ml.training.steps.expected", "gauge"), ("ml.user.tokens", "counter")):
        word = program.journal.cell(program.journal.entry(["cell", kind, name, "", []]))
        program.journal.floats[word + 1] = 7.0
        program.journal.words[word + 2] = 1
    agent = agent_of(program)
    agent.tick()
    agent.mark()

    (rank,) = agent._state.ranks.values()
    values = {series.metric: series.value for series in rank.series.values()}
    assert values["ml.training.steps.expected"] == values["ml.user.tokens"] == 7.0


def test_deep_recursion_is_measured_and_costs_nothing_else(program, agent_of, run_folder) -> None:
    """Three thousand sections inside each other are counted, each with the last one's path."""
    depth = 3000
    spans = [5000 + i for i in range(depth)]
    for i in reversed(range(depth)):
        parent = spans[i - 1] if i else program.run
        program.section("visit", i, 2 * depth - i, span=spans[i], parent=parent)
    program.stop(2 * depth + 1)
    agent_of(program).run()

    rows = [r for r in table(run_folder, "sections") if r["name"] == "visit"]
    assert sum(r["count"] for r in rows) == depth
    assert max(len(r["path"].split("/")) for r in rows) == 32
    account = accounts(run_folder)["spans"]["store"]
    assert account["lost"] == {}
    assert adds_up(account)


def test_steps_of_a_forked_child_are_no_steps_of_its_rank(
    program, journals, agent_of, run_folder
) -> None:
    """They are sections of the run: the rank's steps keep their figures and their traces."""
    child = Program(journals, run_folder, name="0-2-1", is_child=True)
    for i in range(8):
        program.step(i * 10)
        child.step(i * 10 + 1, 2.0)
    child.journal.close()
    program.stop(100)
    agent_of(program, child).run()
    child.journal.release()

    assert [s["n"] for s in table(run_folder, "steps")] == list(range(8))
    inside = {r["path"]: r["count"] for r in table(run_folder, "sections") if r["n"] is None}
    assert inside == {"train.step": 8, "train.step/data.load": 8, "train.step/forward": 8, "": 1}
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections + child.sections
    assert adds_up(account)


def test_sections_below_the_run_are_beside_if_the_steps_run_elsewhere(
    program, agent_of, run_folder
) -> None:
    """The loop may be a task of its own; a thread that began before it is no part of it."""
    program.step(0)
    program.section("on the loop", 11, 12)
    program.section("before it", 13, 14, track=99, parent=0)
    program.stop(20)
    agent_of(program).run()

    rows = table(run_folder, "sections")
    beside = {r["name"]: r["beside"] for r in rows if r["n"] is None}
    assert beside == {"run": False, "on the loop": False, "before it": True}


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


def test_sections_of_forked_children_are_beside_their_ranks_own(
    program, journals, agent_of, run_folder
) -> None:
    """Whatever is inside what there, and what they only add up too."""
    child = Program(journals, run_folder, name="0-2-1", is_child=True)
    program.section("load", 1, 9)
    outer = child.section("load", 2, 8)
    child.section("read", 3, 4, parent=outer)
    number = child.journal.entry(["cell", "aggregate", "decode", "other", "load", "train"])
    word = child.journal.cell(number)
    child.journal.words[word + 1], child.journal.words[word + 2] = 3, 300
    child.journal.close()
    program.stop(100)
    agent_of(program, child).run()
    child.journal.release()

    rows = {(r["name"], r["beside"]): r["sum_ns"] for r in table(run_folder, "sections")}
    assert rows == {
        ("run", False): 100 * MS, ("load", False): 8 * MS, ("load", True): 6 * MS,
        ("read", True): MS, ("decode", True): 300,
    }  # fmt: skip


def test_run_whose_own_row_found_no_room_has_finished(program, agent_of, run_folder) -> None:
    """A journal that was closed is no killed process, even if its last row was dropped."""
    program.step(0)
    program.journal.close()
    agent_of(program).run()

    assert table(run_folder, "processes")[-1]["outcome"] == "finished"


def test_what_the_program_counted_is_in_the_run_folder(program, agent_of, run_folder) -> None:
    """A counter's last total is a reading, with no server anywhere."""
    word = program.journal.cell(
        program.journal.entry(["cell", "counter", "ml.user.tokens", "", []])
    )
    program.journal.floats[word + 1] = 360.0
    program.journal.words[word + 2] = 1
    program.stop(10)
    agent_of(program).run()

    readings = [r for r in table(run_folder, "readings") if r["name"] == "ml.user.tokens"]
    assert readings[-1]["value"] == 360.0


def test_journal_that_was_read_is_not_read_again_after_a_full_disk(
    program, agent_of, run_folder
) -> None:
    """An agent that read a journal to its end but could not store it leaves that to the next."""
    for i in range(20):
        program.step(i * 10)
    program.stop(300)
    tables = run_folder / "tables"
    tables.write_text("in the way")
    first = agent_of(program)
    first.tick()
    tables.unlink()
    del first
    agent_of(program).run()

    assert [s["n"] for s in table(run_folder, "steps")] == list(range(20))
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert adds_up(account)


def test_rows_that_the_log_refused_are_read_again(program, agent_of, run_folder) -> None:
    """Nothing is freed that is not durable: an agent on a full disk loses no row."""
    first = agent_of(program)
    for i in range(20):
        program.step(i * 10)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
        first.tick()
        first.mark()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    freed = program.journal.words[Word.TAIL]
    del first
    program.stop(300)
    agent_of(program).run()

    assert freed == 1
    assert [s["n"] for s in table(run_folder, "steps")] == list(range(20))
    assert accounts(run_folder)["spans"]["store"]["created"] == program.sections


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


def test_segment_is_in_the_trace_of_its_section(program, agent_of) -> None:
    """Also where that is a trace of the section's own."""
    now = time.monotonic_ns()
    alone = program.open("serve", now / MS, root=77, span=77)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    (journal,) = agent._state.journals.values()

    (segment,) = segments(journal, now + 700 * S)
    assert segment.parent == alone
    assert segment.trace == ids.lone_trace_id("0123abcd", alone).to_bytes(16, "big")


def test_stored_total_of_a_counter_is_the_ranks(program, journals, agent_of, run_folder) -> None:
    """What a forked child counted is in it: no reading holds what one process counted alone."""
    child = Program(journals, run_folder, name="0-2-1", is_child=True)
    for one, value in ((program, 300.0), (child, 60.0)):
        word = one.journal.cell(one.journal.entry(["cell", "counter", "ml.user.tokens", "", []]))
        one.journal.floats[word + 1] = value
        one.journal.words[word + 2] = 1
    child.journal.close()
    program.stop(10)
    agent_of(program, child).run()
    child.journal.release()

    stored = [r["value"] for r in table(run_folder, "readings") if r["name"] == "ml.user.tokens"]
    assert stored == [360.0]


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
