"""The ledger of real programs sums to the time measured by a clock around them."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import warm_python
from runs import environment, run_program

MS = 1_000_000


def ledger_of(ended):
    """The run's ledger, as the command prints it; each rank's adds up."""
    command = [sys.executable, "-m", "otel_mlperf", "summary", str(ended.folder), "--json"]
    ledger = json.loads(warm_python.check_output(command, env=environment(ended.runs), text=True))[
        "ledger"
    ]
    for rank in ledger["ranks"]:
        assert sum(rank["spent_ns"].values()) == ledger["wall_ns"]
        assert min(rank["spent_ns"].values()) >= 0
    assert sum(ledger["spent_ns"].values()) == ledger["wall_ns"] * len(ledger["ranks"])
    return ledger


def run(runs, *arguments, **variables):
    """One process of the run, and when it was started and seen to have ended."""
    began = time.time_ns()
    ended = run_program(runs, *arguments, program="part_of_training.py", **variables)
    return ended, began, time.time_ns()


def lived_ns(ended, **of):
    """From the start to the end of each process, by the tables; without what came before."""
    where = " AND ".join(f"{name} = {value}" for name, value in of.items()) or "true"
    ((lived,),) = (
        row.values()
        for row in ended.rows(f"SELECT sum(end_ns - start_ns) AS ns FROM processes WHERE {where}")
    )
    return lived


def steps_ns(ended, where):
    ((found,),) = (
        row.values()
        for row in ended.rows(f"SELECT sum(duration_ns) AS ns FROM steps WHERE {where}")
    )
    return found


def test_plain(tmp_path):
    """All that the program did is in its kind; nothing was lost, and nobody waited for anybody."""
    ended, began, over = run(tmp_path / "runs")
    ledger = ledger_of(ended.settled())
    spent = ledger["spent_ns"]

    assert lived_ns(ended) + spent["imports"] == ledger["wall_ns"]
    # The kernel says when a process began to a hundredth of a second.
    assert ledger["wall_ns"] <= over - began + 10 * MS
    assert spent["train"] + spent["data wait"] == steps_ns(ended, "phase = 'train'") >= 60 * MS
    assert spent["validation"] >= 20 * MS
    assert spent["checkpoint"] >= 10 * MS
    assert spent["set-up"] >= 20 * MS
    assert spent["imports"] > 0
    assert spent["lost work"] == spent["restart"] == spent["idle"] == 0
    assert ledger["goodput"] == pytest.approx(spent["train"] / ledger["wall_ns"])


def test_failed(tmp_path):
    """The step that it failed in is lost work."""
    ended, began, over = run(tmp_path / "runs", "--end", "error")
    assert ended.code == 3
    ledger = ledger_of(ended.settled())

    assert lived_ns(ended) + ledger["spent_ns"]["imports"] == ledger["wall_ns"]
    assert ledger["wall_ns"] <= over - began + 10 * MS
    assert ledger["lost_steps"] == 1
    assert ledger["spent_ns"]["lost work"] == steps_ns(ended, "error") >= 10 * MS


@pytest.mark.slow
def test_killed_and_restarted(tmp_path):
    """Killed in step 5, gone on from step 3: two steps and the open one are lost."""
    runs, again = tmp_path / "runs", {"OTEL_MLPERF_RUN_ID": "5e1f" * 8}
    first, began, dead = run(runs, "--end", "kill", **again)
    assert first.code == -9
    ended, _, over = run(runs, "--first", "3", **again)
    ledger = ledger_of(ended.settled())
    spent = ledger["spent_ns"]

    (row,) = ended.rows(
        "SELECT min(start_ns) AS start, max(end_ns) AS last, "
        "max(start_ns) FILTER (restart = 1) AS second, max(end_ns) FILTER (restart = 0) AS died "
        "FROM processes"
    )
    between = row["second"] - row["died"]
    assert row["last"] - row["start"] <= ledger["wall_ns"] <= over - began + 10 * MS
    (before,) = ended.rows(
        "SELECT value FROM readings WHERE name = 'ml.run.imports.time' AND restart = 0 LIMIT 1"
    )
    assert spent["restart"] + spent["imports"] == between + round(before["value"] * 1e9)
    assert row["died"] <= dead
    assert ledger["lost_steps"] == 2
    (unfinished,) = ended.rows(
        "SELECT sum(end_ns - start_ns) AS ns FROM spans WHERE interrupted AND category = 'step'"
    )
    again_ns = steps_ns(ended, "restart = 0 AND number >= 3")
    assert spent["lost work"] == again_ns + unfinished["ns"]
    good = steps_ns(ended, "phase = 'train' AND (restart = 1 OR number < 3)")
    assert spent["train"] + spent["data wait"] == good
    assert spent["checkpoint"] >= 20 * MS


@pytest.mark.slow
def test_two_ranks(tmp_path):
    """Each rank's time is that of the run; who has done with it before the other is idle."""
    runs = tmp_path / "runs"
    common = {"WORLD_SIZE": "2", "OTEL_MLPERF_RUN_ID": "2a2a" * 8}
    with ThreadPoolExecutor(2) as pool:
        told = list(
            pool.map(
                lambda rank: run(runs, "--steps", str(4 + 20 * rank), **common,
                                 RANK=str(rank), LOCAL_RANK=str(rank)),
                range(2),
            )
        )  # fmt: skip
    ended = told[0][0].settled()
    ledger = ledger_of(ended)

    assert [rank["rank"] for rank in ledger["ranks"]] == [0, 1]
    first, last = min(began for _, began, _ in told), max(over for _, _, over in told)
    assert ledger["wall_ns"] <= last - first + 10 * MS
    for rank in (0, 1):
        spent = ledger["ranks"][rank]["spent_ns"]
        assert spent["imports"] + lived_ns(ended, rank=rank) + spent["idle"] == ledger["wall_ns"]
        assert spent["train"] + spent["data wait"] == steps_ns(
            ended, f"rank = {rank} AND phase = 'train'"
        )
