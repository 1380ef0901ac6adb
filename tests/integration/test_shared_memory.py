"""Whoever empties shared memory while a program runs makes no account wrong."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from runs import Running, adds_up, agent_of, agents_of
from servers.running import wait_until

from otel_mlperf.journal.journal_folder import folders_of_run, journals_in
from otel_mlperf.store.run_folders import list_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
PAUSE = ("--pause", "0.002")
"""Some hundred steps a second: what is written while nobody can find the journal is a ring full."""


@contextmanager
def recording(runs: Path) -> Iterator[tuple[Running, Path]]:
    """A program with an agent that reads it, and the folder of its journal."""
    with Running(
        runs, *PAUSE, OTEL_MLPERF_DRAIN_TIMEOUT_S="0", OTEL_MLPERF_READINGS="none"
    ) as program:
        wait_until(lambda: program.has_counted, what="its first step")
        wait_until(lambda: agent_of(runs), what="its agent")
        (run,) = list_runs(runs)
        folder = Path(folders_of_run(run.facts.id, run.path)[0])
        wait_until(lambda: list((run.path / "accounting").glob("*.json")), what="its first flush")
        yield program, folder


def is_whole(program: Running) -> None:
    """What the program counted is what was created, and none of it was lost."""
    ended = program.end().settled()
    account = ended.accounts()["spans"]["store"]
    assert adds_up(account)
    assert (account["lost"], account["pending"]) == ({}, 0)
    assert account["created"] == ended.counted[0]
    assert ended.rows("SELECT outcome FROM processes")[-1]["outcome"] == "finished"
    assert ended.code == 0


@pytest.mark.fault("F91")
def test_a_removed_journal_is_made_again_and_read_on(tmp_path) -> None:
    """The agent goes on in the new file, alone: nothing is missing, and nothing is there twice."""
    with recording(tmp_path / "runs") as (program, folder):
        agent = agent_of(tmp_path / "runs")
        for _ in range(2):
            shutil.rmtree(folder)
            wait_until(lambda: journals_in(folder), what="the journal to be made again")
            wait_until((folder / "agent.lock").exists, what="the agent's lock")
        assert agent_of(tmp_path / "runs") == agent
        is_whole(program)


@pytest.mark.fault("F91")
def test_an_agent_that_dies_after_the_removal_is_followed_by_one_that_finds_all(tmp_path) -> None:
    """The next agent reads on where the first one ended."""
    with recording(tmp_path / "runs") as (program, folder):
        agent = agent_of(tmp_path / "runs")
        shutil.rmtree(folder)
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: agent_of(tmp_path / "runs") not in (None, agent), what="the next agent")
        is_whole(program)


def test_an_agent_that_was_superseded_leaves(tmp_path) -> None:
    """Stopped while its lock was removed, it finds another one serving and writes nothing more."""
    runs = tmp_path / "runs"
    with recording(runs) as (program, folder):
        first = agent_of(runs)
        os.kill(first, signal.SIGSTOP)
        shutil.rmtree(folder)
        wait_until(lambda: len(agents_of(runs)) == 2, what="the next agent")
        os.kill(first, signal.SIGCONT)
        wait_until(lambda: first not in agents_of(runs), what="the first agent to leave")
        is_whole(program)
