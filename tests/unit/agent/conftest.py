"""Fixtures for the agent: a program written by hand, and an agent that reads it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import warm_python
from by_hand import Program, agent_folder

from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def warm_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts what the agent starts (converters, pages) by forks of a warm process."""
    monkeypatch.setattr(subprocess, "Popen", warm_python.Popen)


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    folder = tmp_path / "journals"
    folder.mkdir()
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "digits-0123"
    folder.mkdir()
    return folder


@pytest.fixture
def program(journals: Path, run_folder: Path):
    made = Program(journals, run_folder)
    yield made
    made.journal.release()


@pytest.fixture
def agent_of(journals: Path):
    def start(*programs: Program, **options) -> Agent:
        own = {p.journal.path: p.journal.buffer for p in programs}
        given = Options(**{"policy": Policy()} | options)
        return Agent(agent_folder(programs[0].meta), Tail(journals, own), given)

    return start
