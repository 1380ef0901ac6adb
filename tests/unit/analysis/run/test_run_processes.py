"""The end of a run is derived from its processes."""

from __future__ import annotations

import pytest
from run_folders import START, RunFolderBuilder, S

from otel_mlperf.analysis.run.run_processes import Failure, read_processes
from otel_mlperf.store.table_reader import Store


def processes_of(run):
    """The processes of a folder that is being built."""
    return read_processes(Store(run.write()))


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["finished", "finished"], "finished"),
        (["finished", "running"], "running"),
        (["running", "interrupted"], "interrupted"),
        (["interrupted", "killed"], "killed"),
        (["killed", "failed"], "failed"),
        ([], "running"),
    ],
)
def test_the_worst_end_of_a_rank_is_the_runs(tmp_path, outcomes, expected):
    """One rank that fails makes the run a failed one."""
    run = RunFolderBuilder(tmp_path)
    for rank, outcome in enumerate(outcomes):
        run.process(0 if outcome == "running" else S, outcome, rank=rank)

    assert processes_of(run).outcome == expected


def test_the_first_failure_is_the_one_that_is_told(tmp_path):
    """The others often fail because of it."""
    run = RunFolderBuilder(tmp_path)
    run.process(3 * S, "failed", rank=0, error_type="TimeoutError", error_step=38)
    run.process(
        2 * S,
        "failed",
        rank=1,
        error_type="RuntimeError",
        error_message="out of memory",
        error_step=37,
        error_section="forward",
    )

    assert processes_of(run).failure() == Failure(
        rank=1, step=37, section="forward", type="RuntimeError", message="out of memory"
    )


def test_a_restart_makes_good_what_came_before(tmp_path):
    """Only the newest process of a rank says how it ended."""
    run = RunFolderBuilder(tmp_path)
    run.process(S, "killed", restart=0, pid=1)
    run.process(2 * S, "finished", restart=1, pid=2)

    found = processes_of(run)

    assert (found.outcome, found.failure(), found.ranks) == ("finished", None, 1)


def test_a_program_that_starts_its_ranks_can_fail_after_them(tmp_path):
    """It was there when the newest of its number began, and is none that this one made good."""
    run = RunFolderBuilder(tmp_path)
    run.process(3 * S, "failed", pid=1, error_type="TypeError")
    run.process(2 * S, "finished", pid=2, start_ns=START + S)
    run.process(2 * S, "finished", pid=3, start_ns=START + S, rank=1)

    found = processes_of(run)

    assert (found.outcome, found.ranks) == ("failed", 2)
    assert found.failure() == Failure(rank=0, step=None, section="", type="TypeError", message="")


def test_one_that_was_gone_is_made_good_though_its_number_is_the_same(tmp_path):
    """Whoever starts a rank again may not count how often."""
    run = RunFolderBuilder(tmp_path)
    run.process(S, "killed", pid=1)
    run.process(3 * S, "finished", pid=2, start_ns=START + 2 * S)

    assert processes_of(run).outcome == "finished"


def test_results_of_several_ranks_are_one_and_the_lowest_rank_has_the_last_word(tmp_path):
    """Ranks report the same names."""
    run = RunFolderBuilder(tmp_path)
    run.process(S, rank=0, result='{"accuracy": 0.9}')
    run.process(S, rank=1, result='{"accuracy": 0.8, "rank1": true}')

    assert processes_of(run).result() == {"accuracy": 0.9, "rank1": True}


def test_a_running_process_lives_up_to_its_last_sign(tmp_path):
    """The last reading, step or section; not the clock of who asks."""
    run = RunFolderBuilder(tmp_path)
    run.process(outcome="running")
    run.step(0, 2 * S, {"forward": S})

    assert processes_of(run).duration_ns == 3 * S
