"""However a process ends, what it recorded is in its run folder and counted exactly."""

from __future__ import annotations

import subprocess
import sys

import pytest
from runs import (
    LIMIT_S,
    PROGRAMS,
    Ended,
    Running,
    adds_up,
    ending,
    environment,
    recover,
    run_program,
)
from servers.running import wait_until

ENDS = {"finish": 0, "exception": 1, "interrupt": -2, "terminate": -15, "kill": -9, "exit": 7}
KILLED = ("terminate", "kill", "exit")


@pytest.mark.sampled(2)
@pytest.mark.fault("F20", "F21", "F22", "F23", "F28")
@pytest.mark.parametrize("end", ENDS)
def test_nothing_that_finished_is_lost(tmp_path, end) -> None:
    """Items created are those that the program counted, and every one has an outcome."""
    ended = run_program(tmp_path / "runs", "--end", end).settled()
    sections, _, _ = ended.counted

    assert ended.code == ENDS[end]
    account = ended.accounts()["spans"]["store"]
    assert adds_up(account)
    assert (account["lost"], account["pending"]) == ({}, 0)
    # What was open when it ended: run, step and forward.
    still_open = 0 if end == "finish" else 3
    assert account["created"] == sections + still_open


@pytest.mark.fault("F20", "F21", "F22")
@pytest.mark.parametrize("end", KILLED)
def test_open_sections_of_a_killed_process_arrive_interrupted(tmp_path, end) -> None:
    """Run, step and section that were open are spans, marked, with their parents."""
    ended = run_program(tmp_path / "runs", "--end", end).settled()

    found = ended.rows("SELECT name, span_id, parent_id, status FROM spans WHERE interrupted")
    spans = {row["name"]: row for row in found}
    assert set(spans) == {"run", "train.step", "forward"}
    assert spans["forward"]["parent_id"] == spans["train.step"]["span_id"]
    (process,) = ended.rows("SELECT outcome FROM processes")
    assert process["outcome"] == "killed"


@pytest.mark.fault("F23")
@pytest.mark.parametrize(
    ("end", "outcome"), [("exception", "failed"), ("interrupt", "interrupted")]
)
def test_error_marks_every_section_that_it_crossed(tmp_path, end, outcome) -> None:
    """Open sections end with the error, and the run says where it began."""
    ended = run_program(tmp_path / "runs", "--end", end).settled()

    failed = ended.rows("SELECT name FROM spans WHERE status = 'error' AND NOT interrupted")
    assert {row["name"] for row in failed} == {"run", "train.step", "forward"}
    (process,) = ended.rows("SELECT outcome, error_step, error_section FROM processes")
    assert process == {"outcome": outcome, "error_step": 49, "error_section": "forward"}


@pytest.mark.parametrize("end", ["finish", "kill"])
def test_counter_holds_the_sum_that_was_added(tmp_path, end) -> None:
    """A counter's cells survive the process, up to the last addition."""
    ended = run_program(tmp_path / "runs", "--end", end).settled()

    _, steps, tokens = ended.counted
    assert tokens == 3 * (50 if end == "finish" else 49)
    (row,) = ended.rows("SELECT count(*) AS steps FROM steps")
    assert row["steps"] == steps


def test_agent_in_a_thread_stores_all_of_its_program(tmp_path) -> None:
    """Once the journal has been read to its end nothing is left of it."""
    with Running(tmp_path / "runs", "--pause", "0.01", OTEL_MLPERF_AGENT="thread") as one:
        wait_until(lambda: list(one.runs.glob("*/tables/steps/*.parquet")), what="the first tables")
        ended = one.end()
    recover(ended.runs)  # on a busy machine the thread has ended with its program, after 1.5 s
    ended.settled()

    assert ended.rows("SELECT count(*) AS n FROM steps") == [{"n": ended.counted[1]}]
    assert ended.accounts()["spans"]["store"]["created"] == ended.counted[0]


@pytest.mark.slow
def test_agents_in_threads_of_two_ranks_read_each_journal_once(tmp_path) -> None:
    """Two ranks whose agents are threads have each step once: one thread reads for both."""
    runs, until = tmp_path / "runs", tmp_path / "until"
    ranks = [Ended(0, "", "", runs, tmp_path / rank) for rank in "01"]
    loop = f"exec {sys.executable} {PROGRAMS / 'loop.py'} --count {tmp_path}/$RANK --until {until}"
    launcher = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python",
         "bash", "-c", f"{loop} --steps 1000000 --pause 0.02"],
        env=environment(runs, OTEL_MLPERF_AGENT="thread"), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with ending([launcher]):
        wait_until(lambda: all(rank.has_counted for rank in ranks), what="steps of two ranks")
        wait_until(lambda: list(runs.glob("*/tables/steps/*.parquet")), what="the first tables")
        until.touch()
        assert launcher.wait(LIMIT_S) == 0
    recover(runs)
    ended = ranks[0].settled()

    assert ended.rows("SELECT rank, count(*) AS n FROM steps GROUP BY rank ORDER BY rank") == [
        {"rank": number, "n": rank.counted[1]} for number, rank in enumerate(ranks)
    ]
    assert adds_up(ended.accounts()["spans"]["store"])


@pytest.mark.fault("F26")
def test_rank_that_is_killed_and_started_again_adds_up(tmp_path) -> None:
    """Three starts of one rank, two of which were killed: each is counted, no id comes twice."""
    counts = []
    for end in ("kill", "kill", "finish"):
        ended = run_program(tmp_path / "runs", "--end", end, OTEL_MLPERF_RUN_ID="4" * 32)
        assert ended.code == ENDS[end]
        counts.append(ended.counted)
    ended.settled()

    account = ended.accounts()["spans"]["store"]
    assert adds_up(account)
    assert (account["lost"], account["pending"]) == ({}, 0)
    still_open = 2 * 3
    assert account["created"] == sum(sections for sections, _, _ in counts) + still_open
    rows = ended.rows("SELECT restart, count(*) AS n FROM steps GROUP BY restart ORDER BY restart")
    assert [row["n"] for row in rows] == [steps for _, steps, _ in counts]
    (ids,) = ended.rows("SELECT count(*) AS n, count(DISTINCT span_id) AS different FROM spans")
    assert ids["n"] == ids["different"] > 0
