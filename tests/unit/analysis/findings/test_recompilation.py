"""Repeated compilation by torch.compile in step after step is found."""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run


def judged(tmp_path, compiling, compile_ns=200 * MS, count=60, elements=lambda n: None):
    """Findings of a run that compiles in these steps, of batches of so many elements."""
    run, at = RunFolderBuilder(tmp_path), 0
    for n in range(count):
        run.step(n, at, {"forward": 8 * MS, "backward": 12 * MS}, own=MS, elements=elements(n))
        if n in compiling:
            row = run.steps[-1]
            row["duration_ns"] += compile_ns
            row["end_ns"] += compile_ns
            run.section(row, "compile", compile_ns, category="compile", start_ns=START + at)
        at = run.steps[-1]["end_ns"] - START
    run.process(at + S)
    found = judge_run(read_run(run.write())).findings
    return [one for one in found if one.id == "recompilation"]


def test_the_first_step_and_an_odd_batch_compile_for_good_reason(tmp_path):
    """The last batch of an epoch is smaller."""
    assert judged(tmp_path, {0, 20}, compile_ns=900 * MS) == []
    last = {"compile_ns": 900 * MS, "elements": lambda n: 100 if n % 20 == 19 else 512}
    assert judged(tmp_path / "sizes", {0, 19}, **last) == []


def test_shapes_that_change_throughout_are_found_by_one_compilation(tmp_path):
    """The second shape has a graph compiled for all of them, which takes half of the time."""
    late = {"compile_ns": 1200 * MS, "elements": lambda n: 512 if n < 19 else 100 + n % 7}
    for name, one in (
        ("soon", judged(tmp_path / "soon", {0, 1}, compile_ns=1200 * MS)),
        ("sizes", judged(tmp_path / "sizes", {0, 19}, **late)),
    ):
        assert [found.severity for found in one] == ["warning"], name
        assert "recompiles in 1 of 59 steps" in one[0].summary
        assert one[0].gain.low < 0.49 < one[0].gain.high


def test_a_third_graph_of_batches_of_unknown_size_is_found_where_it_costs_much(tmp_path):
    """The first step and the last batch of a pass explain two graphs."""
    (one,) = judged(tmp_path / "large", {0, 15, 30, 45}, compile_ns=900 * MS)
    assert "recompiles in 3 of 59 steps" in one.summary
    assert judged(tmp_path / "two", {0, 20, 40}, compile_ns=900 * MS) == []
    assert judged(tmp_path / "small", {0, 15, 30, 45}, compile_ns=80 * MS) == []


def test_compiling_in_step_after_step_is_found_with_what_it_takes(tmp_path):
    """Every fourth step: a quarter of them at 200 ms beside 21."""
    (one,) = judged(tmp_path, set(range(0, 60, 4)))

    share = 14 * 200 / (14 * 200 + 59 * 21)
    assert one.evidence["share"] == pytest.approx(share)
    assert one.where.steps == (4, 56)
    assert "recompiles in 14 of 59 steps" in one.summary
    assert one.gain.low < share <= one.gain.high + 1e-9


def test_compilations_that_take_nearly_nothing_are_no_finding(tmp_path):
    """Of a small graph, in a few steps of many."""
    assert judged(tmp_path, {5, 15, 25, 35, 45}, compile_ns=5 * MS) == []
