"""One step is shown with its spans."""

from __future__ import annotations

import json

import pytest
from run_folders import MS, START, RunFolderBuilder, S, digits

from otel_mlperf.analysis.steps.sampled_step import read_step
from otel_mlperf.errors import NoSuchStep
from otel_mlperf.store.run_folders import read_run


def step_of(run, number, **options):
    """The step in a folder that is being built."""
    return read_step(read_run(run.write()), number, **options)


def kept_step(tmp_path):
    """A run with the spans of step 2: one thread beside, one roll-up, an error."""
    run = digits(tmp_path)
    at = run.steps[2]["start_ns"] - run.steps[0]["start_ns"] + 400 * MS
    root = run.span(2, "train.step", at, 50 * MS)
    run.span(2, "data.load", at, 15 * MS, parent_id=root)
    forward = run.span(2, "forward", at + 15 * MS, 12 * MS, parent_id=root)
    run.span(2, "layer", at + 15 * MS, 4 * MS, parent_id=forward)
    run.span(2, "layer", at + 17 * MS, 4 * MS, parent_id=forward)
    rolled = {"otel_mlperf.rolled_up.count": 5, "otel_mlperf.rolled_up.sum": 2 * MS}
    run.span(
        2, "norm", at + 20 * MS, 7 * MS, parent_id=forward, kind="rollup",
        attributes=json.dumps(rolled),
    )  # fmt: skip
    run.span(2, "prefetch", at + 5 * MS, 30 * MS, parent_id=root, track=7, thread="loader")
    run.span(2, "backward", at + 30 * MS, 16 * MS, parent_id=root, status="error")
    return run


def test_spans_come_as_a_tree_with_their_own_time(tmp_path):
    """Self is the time in no child of the same thread; overlapping children count once."""
    found = step_of(kept_step(tmp_path), 2)

    assert [
        (s.name, s.depth, s.start_ns // MS, s.duration_ns // MS, s.self_ns // MS, s.beside)
        for s in found.ranks[0].spans
    ] == [
        ("train.step", 0, 0, 50, 7, False),
        ("data.load", 1, 0, 15, 15, False),
        ("prefetch", 1, 5, 30, 30, True),
        ("forward", 1, 15, 12, 4, False),
        ("layer", 2, 15, 4, 4, False),
        ("layer", 2, 17, 4, 4, False),
        ("norm", 2, 20, 2, 7, False),
        ("backward", 1, 30, 16, 16, False),
    ]
    assert found.is_kept
    assert found.nearby == []


def test_a_step_that_was_not_kept_has_its_measures_and_names_neighbours(tmp_path):
    """The nearest five with spans, in order."""
    found = step_of(digits(tmp_path), 30)

    assert found.nearby == [1, 2, 3, 4, 23]
    assert [(s.name, s.self_ns // MS) for s in found.ranks[0].sections] == [
        ("data wait", 17),
        ("forward", 11),
        ("backward", 16),
        ("optimizer", 4),
        ("untracked", 2),
    ]


def test_of_a_number_used_again_the_newest_step_is_meant(tmp_path):
    """After a rollback, and after a restart; on all ranks the same one."""
    run = RunFolderBuilder(tmp_path)
    for rank in (0, 1):
        run.step(5, 0, {"forward": MS}, number=5, rank=rank)
        run.step(9, 100 * MS + rank, {"forward": 2 * MS}, number=5, rank=rank)
    run.process(S)

    found = step_of(run, 5)

    assert (found.n, [(one.rank, one.duration_ns) for one in found.ranks]) == (
        9,
        [(0, 2 * MS), (1, 2 * MS)],
    )


def test_phase_and_rank_narrow_it_down(tmp_path):
    """Without a phase, train is meant."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": MS}, rank=0)
    run.step(0, 0, {"forward": MS}, rank=1)
    run.step(0, S, {"forward": 3 * MS}, phase="validate")
    path = read_run(run.write())

    assert [one.rank for one in read_step(path, 0).ranks] == [0, 1]
    assert [one.rank for one in read_step(path, 0, rank=1).ranks] == [1]
    assert read_step(path, 0, phase="validate").ranks[0].duration_ns == 3 * MS


def test_a_step_that_was_open_when_its_process_died_is_shown(tmp_path):
    """It never ended, so there is no row of it; its spans are there."""
    run = digits(tmp_path)
    root = {"interrupted": True, "status": "error", "kept": "interrupted"}
    step = run.span(40, "train.step", 5 * S, 80 * MS, root_id=f"{1:016x}", **root)
    run.span(40, "forward", 5 * S + MS, 79 * MS, parent_id=step, root_id=step, **root)

    found = step_of(run, 40).ranks[0]

    assert (found.kept, found.is_error, found.duration_ns) == ("interrupted", True, 80 * MS)
    assert [(span.name, span.self_ns) for span in found.spans] == [
        ("train.step", MS),
        ("forward", 79 * MS),
    ]
    assert found.sections == []


@pytest.mark.parametrize(
    ("options", "tried"),
    [
        ({}, "looking for train step 99 of run 3f2a: not found; "),
        ({"rank": 3}, "looking for train step 99 of run 3f2a on rank 3: not found; "),
    ],
)
def test_a_step_that_does_not_exist_says_which_do(tmp_path, options, tried):
    """By phase, with their numbers."""
    with pytest.raises(NoSuchStep) as error:
        step_of(digits(tmp_path), 99, **options)

    assert str(error.value) == f"{tried}completed steps: train 0 to 39 on 1 rank"


def test_a_run_without_steps_says_so(tmp_path):
    """And what it can show instead."""
    with pytest.raises(NoSuchStep) as error:
        step_of(RunFolderBuilder(tmp_path), 1)

    assert str(error.value) == (
        "looking for train step 1 of run 3f2a: no step has ended in this run; "
        "see otel-mlperf summary 3f2a"
    )


def test_without_a_number_it_is_the_slowest_step_that_was_kept(tmp_path):
    """The warm-up aside; with the numbers of others to ask for."""
    step = read_step(read_run(digits(tmp_path).write()))

    assert (step.number, step.chosen, step.kept) == (23, True, [0, 1, 2, 3, 4, 23])


def test_a_step_that_was_lost_is_not_said_to_be_none(tmp_path):
    """It was there, but found no room."""
    run = RunFolderBuilder(tmp_path)
    for n in (0, 9):
        run.step(n, n * 10 * MS, {"forward": 5 * MS})
    run.process(S)
    run.accounting(spans={"store": {"created": 18_691, "lost": {"ring_full": 18_691}}})
    folder = read_run(run.write())

    with pytest.raises(NoSuchStep, match="this step was lost: 18,691 sections were dropped"):
        read_step(folder, 5)
    with pytest.raises(NoSuchStep, match="not found; completed steps: train 0 to 9 on"):
        read_step(folder, 12)


def test_a_collection_of_garbage_says_what_it_fell_into(tmp_path):
    """Also in a step of which only the measures are there."""
    run = digits(tmp_path)
    run.section(run.steps[30], "gc.collect", 3 * MS, parent="data.load")
    run.section(run.steps[30], "gc.collect", MS, parent="train.step", start_ns=START + 1)
    (rank,) = step_of(run, 30).ranks

    assert [(one.name, one.self_ns // MS, one.inside) for one in rank.sections][:3] == [
        ("garbage collection", 3, "data wait"),
        ("garbage collection", 1, "the step itself"),
        ("data wait", 17, ""),
    ]


def test_marks_in_a_step(tmp_path):
    """Those of its own rank, phase and time, by how long after its begin they were set."""
    run = digits(tmp_path)
    begin = run.steps[2]["start_ns"] - START
    run.mark("inside", begin + 3 * MS, 2)
    run.mark("other phase", begin + 3 * MS, 2, phase="validate")
    run.mark("other rank", begin + 3 * MS, 2, rank=1)
    run.mark("before", begin - MS, 2)

    (rank,) = step_of(run, 2).ranks

    assert [(mark.name, mark.after_ns) for mark in rank.marks] == [("inside", 3 * MS)]
