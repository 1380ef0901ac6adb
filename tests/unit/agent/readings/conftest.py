"""Fixtures shared by the tests of readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from by_hand import agent_folder

from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy

if TYPE_CHECKING:
    from by_hand import Program

    from otel_mlperf.agent.readings.sensor_set import SensorSet


@pytest.fixture
def agent_with(journals):
    """Makes an agent that reads the given sensors in each of its looks."""

    def start(machine: SensorSet, *programs: Program, **options) -> Agent:
        own = {p.journal.path: p.journal.buffer for p in programs}
        given = Options(policy=Policy(), **{"readings_s": 0.0, **options})
        return Agent(agent_folder(programs[0].meta), Tail(journals, own), given, machine)

    return start
