"""Sensors with readings scripted by a test, read by an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.agent.readings.sensor_set import DirectSensor, SensorSet
from otel_mlperf.sensors.measurement import Measurement

if TYPE_CHECKING:
    from otel_mlperf.agent.lifecycle.agent_loop import Agent

LOAD = Measurement(names.LOAD_1M.name, {}, 1.5)


class Told:
    """A sensor that says what it is told to, one pass after the other; the last again and again."""

    def __init__(self, *passes: list[Measurement]) -> None:
        self.passes = list(passes)
        self.reads = 0

    def read(self) -> list[Measurement]:
        self.reads += 1
        return self.passes.pop(0) if len(self.passes) > 1 else self.passes[0]

    def close(self) -> None:
        self.passes = [[]]


def machine(devices=(), **sensors: Told) -> SensorSet:
    sources = {name: DirectSensor(name, sensor) for name, sensor in sensors.items()}
    return SensorSet(sources, lambda: devices)


def values(series):
    """Values by metric and last label of what has not ended."""
    return {
        (one.metric, *list(one.labels.values())[-1:]): one.value
        for one in series.values()
        if one.source and not one.gone and not one.metric.startswith("otel_mlperf.")
    }


def look(agent: Agent) -> None:
    agent.tick()
    agent.mark()
