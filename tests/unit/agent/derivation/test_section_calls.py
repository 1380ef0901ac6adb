"""Every call of a section counts in its histogram, and each within its bound."""

from __future__ import annotations

import json
import statistics

from by_hand import MS, TRACK, table

from otel_mlperf import names
from otel_mlperf.journal.layout import Flag, Kind


def calls(run_folder, **place):
    """The row of one place, by column."""
    (row,) = (row for row in table(run_folder, "durations") if place.items() <= row.items())
    return row


def test_all_calls_of_all_steps_count(program, agent_of, run_folder) -> None:
    """Of 250 steps, seven of which are kept, each call is in all figures."""
    took = [1 + i % 7 for i in range(250)]
    for i, length in enumerate(took):
        step = program.begin_step(i * 10)
        program.section("forward", i * 10, i * 10 + length, parent=step, root=step)
        program.end_step(step, i * 10, i * 10 + 10)
    program.stop(2600)
    agent_of(program).run()

    row = calls(run_folder, name="forward", phase="train", in_step=True)
    assert (row["count"], row["sum_ns"]) == (250, sum(took) * MS)
    assert (row["min_ns"], row["max_ns"]) == (MS, 7 * MS)
    spread = statistics.pvariance([length * MS for length in took]) * 250
    assert abs(row["spread"] - spread) <= spread * 1e-9
    assert sum(json.loads(row["counts"])) == 250
    assert (row["bound_s"], row["within"]) == (None, 0)


def test_outside_steps_each_path_has_its_own(program, agent_of, run_folder) -> None:
    """As the tree has it; those that failed are counted."""
    program.section("load", 1, 2, parent=900)
    program.section("outer", 0, 5, span=900)
    program.section("load", 6, 9, error=True)
    program.stop(20)
    agent_of(program).run()

    found = {row["path"]: row for row in table(run_folder, "durations") if row["path"]}
    assert {path: (row["count"], row["sum_ns"], row["errors"]) for path, row in found.items()} == {
        "outer/load": (1, MS, 0),
        "outer": (1, 5 * MS, 0),
        "load": (1, 3 * MS, 1),
    }


def test_within_the_bound_is_counted_call_by_call(program, agent_of, run_folder) -> None:
    """No longer than it, to the nanosecond; what failed is not within it, however fast."""
    bound = {names.SECTION_BOUND: 0.005}
    entry = program.journal.entry(["section", "predict", names.REQUEST, "train", bound])
    for i, (length_ns, flag) in enumerate(
        [(5 * MS, 0), (5 * MS + 1, 0), (1, 0), (2 * MS, Flag.ERROR)]
    ):
        span, start = 700 + i, i * 10 * MS
        row = (span, program.run, span, TRACK, entry, Kind.SECTION | flag)
        program.journal.put(start, start + length_ns, *row)
    program.stop(90)
    agent = agent_of(program)
    agent.run()

    row = calls(run_folder, name="predict")
    assert (row["bound_s"], row["count"], row["errors"], row["within"]) == (0.005, 4, 1, 2)
    (rank,) = agent._state.ranks.values()
    of = {one.metric: one for one in rank.series.values()}
    assert of[names.SECTION_WITHIN.name].value == 2
    assert of[names.SECTION_BOUNDED.name].value == 4
    assert of[names.SECTION_WITHIN.name].labels == of[names.SECTION_BOUNDED.name].labels == {
        names.SECTION_NAME: "predict", names.SECTION_CATEGORY: "request", names.ML_PHASE: "",
    }  # fmt: skip


def test_requests_have_the_minute_in_which_each_ended(program, agent_of, run_folder) -> None:
    """Also those of one look of the agent; what is no request has none."""
    first = program.meta.unix_ns // (60_000 * MS) * 60_000  # ms
    until_next = 60_000 - (program.meta.unix_ns // MS - first)
    bound = {names.SECTION_BOUND: 1.0}
    entry = program.journal.entry(["section", "predict", names.REQUEST, "", bound])
    ends = [until_next - 500, until_next - 1, until_next, until_next + 300]
    for i, end in enumerate(ends):
        span, error = 700 + i, Flag.ERROR if i == 2 else 0
        row = (span, program.run, span, TRACK, entry, Kind.SECTION | error)
        program.journal.put((end - 3 - i) * MS, end * MS, *row)
    program.section("load", until_next - 5, until_next + 5)
    program.stop(until_next + 900)
    agent_of(program).run()

    rows = [row for row in table(run_folder, "durations") if row["name"] == "predict"]
    found = sorted(
        (row["minute_ns"], row["count"], row["errors"], row["within"], row["sum_ns"])
        for row in rows
    )
    assert found == [
        (first * MS, 2, 0, 2, 7 * MS),
        ((first + 60_000) * MS, 2, 1, 1, 11 * MS),
    ]
    assert calls(run_folder, name="load")["minute_ns"] is None
