"""The page of one step is readable."""

from __future__ import annotations

import json

from run_folders import MS, START, S, digits

from otel_mlperf.analysis.steps.sampled_step import read_step
from otel_mlperf.report.step_page import render_step
from otel_mlperf.store.run_folders import read_run


def rendered(run, number):
    """The text of a step in a folder that is being built."""
    return render_step(read_step(read_run(run.write()), number))


def test_a_kept_step_is_a_tree_with_a_chart(tmp_path):
    """Equal leaves in a row are cut, errors told, other threads named, roll-ups counted."""
    run = digits(tmp_path)
    at = run.steps[2]["start_ns"] - START
    root = run.span(2, "train.step", at, 49 * MS)
    run.span(2, "data.load", at, 15 * MS, parent_id=root)
    run.span(2, "prefetch", at + 5 * MS, 30 * MS, parent_id=root, track=7, thread="loader")
    forward = run.span(2, "forward", at + 15 * MS, 12 * MS, parent_id=root)
    for layer in range(9):
        run.span(2, "layer", at + (15 + layer) * MS, MS // 2, parent_id=forward)
    rolled = {"otel_mlperf.rolled_up.count": 1200, "otel_mlperf.rolled_up.sum": 2 * MS}
    run.span(
        2, "norm", at + 25 * MS, 2 * MS, parent_id=forward, kind="rollup",
        attributes=json.dumps(rolled),
    )  # fmt: skip
    failed = {"exception.type": "RuntimeError", "exception.message": "shape\nmismatch"}
    run.span(
        2, "backward", at + 27 * MS, 16 * MS, parent_id=root, status="error",
        attributes=json.dumps(failed),
    )  # fmt: skip

    assert rendered(run, 2) == (
        """\
step 2 · train · run 3f2a
trace 00000000000000000000000000000003
rank 0 · 47.2 ms · 64 samples · sampled as one of the first
  span                                    time      self
  train.step                           49.0 ms   6.00 ms  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
    data wait                          15.0 ms   15.0 ms  ▇▇▇▇▇▇▇
    prefetch (loader)                  30.0 ms   30.0 ms    ▇▇▇▇▇▇▇▇▇▇▇▇▇
    forward                            12.0 ms   5.50 ms        ▇▇▇▇▇
      layer                             500 µs    500 µs        ▇
      layer                             500 µs    500 µs         ▇
      layer                             500 µs    500 µs         ▇
      layer                             500 µs    500 µs          ▇
      layer                             500 µs    500 µs          ▇
      4 more layer                     2.00 ms   2.00 ms
      norm ×1,200                      2.00 ms   2.00 ms             ▇
    backward                           16.0 ms   16.0 ms              ▇▇▇▇▇▇▇
      RuntimeError: shape mismatch
"""
    )


def test_a_step_that_was_not_kept_says_so_and_shows_what_was_measured(tmp_path):
    """With the neighbours that were kept."""
    assert rendered(digits(tmp_path), 30) == (
        """\
step 30 · train · run 3f2a
trace 0000000000000000000000000000001f
measured, not sampled (the first, every Nth and slow steps are); sampled nearby: 1, 2, 3, 4, 23
rank 0 · 50.0 ms · 64 samples
  section              calls     total      self
  data wait                1   17.0 ms   17.0 ms
  forward                  1   11.0 ms   11.0 ms
  backward                 1   16.0 ms   16.0 ms
  optimizer                1   4.00 ms   4.00 ms
  untracked                1   2.00 ms   2.00 ms
"""
    )


def test_an_exception_is_told_where_it_came_from(tmp_path):
    """Not again at every span that it crossed."""
    run = digits(tmp_path)
    at = run.steps[2]["start_ns"] - START
    failed = {
        "status": "error",
        "attributes": json.dumps({"exception.type": "OSError", "exception.message": "x"}),
    }
    root = run.span(2, "train.step", at, 49 * MS, **failed)
    run.span(2, "data.load", at, 15 * MS, parent_id=root, **failed)
    open_still = {
        "root_id": root,
        "interrupted": True,
        "attributes": '{"otel_mlperf.interrupted": true}',
    }
    run.span(2, "forward", at + 15 * MS, MS, parent_id=root, **open_still)

    lines = [line.strip() for line in rendered(run, 2).splitlines()[4:]]

    assert [line.split("  ")[0] for line in lines] == [
        "train.step",
        "data wait",
        "OSError: x",
        "forward",
        "still open when the process ended",
    ]


def test_ranks_that_kept_nothing_are_told_beside_those_that_did(tmp_path):
    """A slow step is kept by the rank that saw it."""
    run = digits(tmp_path)
    at = run.steps[2]["start_ns"] - START
    run.span(2, "train.step", at, 49 * MS)
    run.step(2, at, {"forward": 20 * MS}, rank=1, trace_id=f"{3:032x}")
    run.process(S, rank=1)

    lines = rendered(run, 2).splitlines()

    assert lines[2] == "rank 0 · 47.2 ms · 64 samples · sampled as one of the first"
    assert lines[-1] == "rank 1 · 20.0 ms · measured, not sampled"


def test_the_slowest_step_says_that_nobody_asked_for_it(tmp_path):
    """One line, with up to ten others."""
    lines = rendered(digits(tmp_path), None).splitlines()

    assert lines[0] == "step 23 · train · run 3f2a"
    assert lines[2] == "slowest sampled step; other sampled steps (--step N): 0, 1, 2, 3, 4"


def test_what_the_program_said_of_a_section_stands_below_it(tmp_path):
    """Its attributes, as JSON has them; those that everybody has are not repeated."""
    run = digits(tmp_path)
    at = run.steps[2]["start_ns"] - START
    said = json.dumps({"file": "a.txt", "rows": 512, "ml.section.category": "other"})
    root = run.span(2, "train.step", at, 49 * MS)
    run.span(2, "read", at, 15 * MS, parent_id=root, attributes=said)

    lines = rendered(run, 2).splitlines()

    assert [line.split("  ")[0] for line in map(str.strip, lines[4:])] == [
        "train.step",
        "read",
        "file a.txt · rows 512",
    ]


def test_checkpoint_says_its_size_and_rate(tmp_path):
    """In words; a program that calls something else so is shown no such line."""
    run = digits(tmp_path)
    at = run.steps[2]["start_ns"] - START
    root = run.span(2, "train.step", at, 49 * MS)
    for size in (2_500_000, "large"):
        said = json.dumps({"ml.checkpoint.size": size, "ml.checkpoint.rate": 250e6, "file": "a"})
        run.span(2, "checkpoint", at, 10 * MS, parent_id=root, attributes=said)

    lines = [line.strip() for line in rendered(run, 2).splitlines()]

    assert lines[6] == "2.50 MB at 250 MB/s · file a"
    assert lines[8] == "file a"


def test_a_wide_terminal_has_longer_names_and_charts(tmp_path):
    """And a narrow one shorter ones; every line fits."""
    run = digits(tmp_path)
    at = run.steps[2]["start_ns"] - START
    root = run.span(2, "train.step", at, 49 * MS)
    name = "a_section_that_was_given_a_name_of_sixty_one_letters_in_a_row"
    run.span(2, name, at, 15 * MS, parent_id=root)
    step = read_step(read_run(run.write()), 2)

    for width in (60, 70, 80, 100, 200):
        lines = render_step(step, width=width).splitlines()
        assert max(map(len, lines)) <= width
        assert (name in lines[5]) == (width == 200)
        assert lines[4].count("▇") == {60: 12, 70: 17, 80: 22, 100: 32, 200: 60}[width]


def test_what_the_program_marked_stands_below_the_heading(tmp_path):
    """With how long after the begin of the step it was."""
    run = digits(tmp_path)
    begin = run.steps[2]["start_ns"] - START
    run.mark("lr halved", begin + 3 * MS, 2)
    run.mark("warm", begin + 4 * MS, 2)

    assert "\n  marks: lr halved at 3.00 ms, warm at 4.00 ms\n" in rendered(run, 2)


def test_of_very_many_ranks_the_worst_are_told(tmp_path):
    """Who failed and who took longest, not the first sixteen; the others are counted."""
    run = digits(tmp_path)
    for rank in range(1, 40):
        slow = {33: 90, 7: 80}.get(rank, 5)
        run.step(2, 0, {"forward": slow * MS}, rank=rank, error=rank == 21)
    shown = rendered(run, 2)

    assert "rank 33 · 90.0 ms" in shown
    assert "rank 21 · 5.00 ms · failed" in shown
    assert "rank 1 · 5.00 ms\n" in shown
    assert shown.count("\nrank ") == 16
    assert shown.index("rank 7 ·") < shown.index("rank 21") < shown.index("rank 33")
    assert "24 more ranks: --rank N" in shown


def test_where_a_trace_had_no_room_for_sections_their_times_are_told(tmp_path):
    """Of thousands of ranks most have the span of the step alone: what it held is told below."""
    run = digits(tmp_path)
    run.span(2, "train.step", run.steps[2]["start_ns"] - START, 49 * MS)
    lines = rendered(run, 2).splitlines()

    assert lines[4].split()[0] == "train.step"
    assert lines[5].split() == ["section", "calls", "total", "self"]
    assert [line.split()[0] for line in lines[6:]] == [
        "data",
        "forward",
        "backward",
        "optimizer",
        "untracked",
    ]
