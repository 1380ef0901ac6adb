"""The time of each event in a run is known."""

from __future__ import annotations

from run_folders import MS, START, RunFolderBuilder, digits

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.analysis.page.page_contents import read_moments
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store


def moments_of(run, *kinds):
    """Kind, name, begin and length in milliseconds of a folder that is being built."""
    folder = read_run(run.write())
    return [
        (moment.kind, moment.name, (moment.time_ns - START) // MS, moment.duration_ns // MS)
        for moment in read_moments(Store(folder.path), judge_run(folder))
        if moment.kind in kinds
    ]


def test_epochs_validations_and_checkpoints(tmp_path):
    """In the order of their times, with their length."""
    found = moments_of(digits(tmp_path), "validation", "checkpoint")

    assert [(kind, name, lasted) for kind, name, _, lasted in found] == [
        ("validation", "validate", 110),
        ("checkpoint", "checkpoint", 40),
        ("validation", "validate", 110),
        ("checkpoint", "checkpoint", 40),
    ]


def test_an_epoch_reaches_from_its_first_step_to_its_last(tmp_path):
    """And steps of a validation are a validation, whatever their epoch."""
    run = RunFolderBuilder(tmp_path)
    for epoch in (0, 1):
        for n in (0, 1):
            run.step(2 * epoch + n, (epoch * 100 + n * 10) * MS, {"forward": 10 * MS}, epoch=epoch)
        for n in (0, 1):
            at = (epoch * 100 + 40 + n * 5) * MS
            run.step(2 * epoch + n, at, {"forward": 5 * MS}, phase="validate", epoch=epoch)

    assert moments_of(run, "epoch", "validation") == [
        ("epoch", "epoch 0", 0, 20),
        ("validation", "validate", 40, 10),
        ("epoch", "epoch 1", 100, 20),
        ("validation", "validate", 140, 10),
    ]


def test_of_calls_that_are_stored_together_the_first_begin_is_known(tmp_path):
    """Not their lengths; they are counted."""
    run = RunFolderBuilder(tmp_path)
    run.process(1000 * MS)
    run.outside("checkpoint", 90 * MS, count=3, start_ns=START + 7 * MS)

    assert moments_of(run, "checkpoint") == [("checkpoint", "checkpoint ×3", 7, 0)]


def test_a_restart_is_where_its_first_process_began(tmp_path):
    """The first start is none."""
    run = RunFolderBuilder(tmp_path)
    run.process(50 * MS, "crashed")
    run.process(200 * MS, restart=1, start_ns=START + 80 * MS)

    assert moments_of(run, "restart") == [("restart", "restart 1", 80, 0)]


def test_marks_of_the_first_rank_that_set_any(tmp_path):
    """By their names, at their times; those of other ranks would stand on the same places."""
    run = digits(tmp_path)
    for rank in (2, 1):
        run.mark("warm", 500 * MS + rank, 3, rank=rank)
        run.mark("lr halved", 900 * MS, 9, rank=rank)

    assert moments_of(run, "mark") == [("mark", "warm", 500, 0), ("mark", "lr halved", 900, 0)]
