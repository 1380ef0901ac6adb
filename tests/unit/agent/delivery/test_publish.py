"""Processes get readings and warnings from the agent, as one file next to the journals."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import agent_folder, table
from told_sensors import Told, machine

from otel_mlperf import names
from otel_mlperf.agent.delivery.publish import Publisher
from otel_mlperf.agent.derivation.metric_series import Meter
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.agent_state import ItemAccount
from otel_mlperf.agent.model.events import Read, SensorReading
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.agent.readings.sensor_set import SensorSet
from otel_mlperf.journal.bulletin import FILE, read_readings
from otel_mlperf.sensors.measurement import Measurement

MEMORY = names.PROCESS_MEMORY.name


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def state(program, agent_of):
    """What an agent knows that has looked at the journal of one rank."""
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    yield agent._state
    agent.finish()


def test_readings_are_told(journals, state):
    """Each source's last readings are there with their time, whoever was read when."""
    clock = Clock()
    board = Publisher(journals, clock=clock)
    board.publish([Read("process", 1, [SensorReading("0-1-1.journal", MEMORY, {}, 5.0)])], state)
    clock.now_s = 101.0
    board.publish([Read("host", 2, [SensorReading("", names.LOAD_1M.name, {}, 0.5)])], state)
    clock.now_s = 102.0
    board.publish([Read("process", 3, [SensorReading("0-1-1.journal", MEMORY, {}, 6.0)])], state)

    groups = read_readings(str(journals)).groups
    assert {source: group.monotonic_ns / 1e9 for source, group in groups.items()} == {
        "process": 102.0,
        "host": 101.0,
    }
    assert [(one.journal, one.metric, one.value) for one in groups["process"].readings] == [
        ("0-1-1.journal", MEMORY, 6.0)
    ]


def test_totals_are_told_with_those_before(journals, state):
    """Of disks and network the reading before is there too, and of nothing else: rates need it."""
    clock, labels = Clock(), {names.SYSTEM_DEVICE: "sda", names.DISK_DIRECTION: "read"}
    board = Publisher(journals, clock=clock)
    for total in (1000.0, 3000.0):
        read = [
            SensorReading("", names.DISK_IO.name, labels, total),
            SensorReading("", names.LOAD_1M.name, {}, 0.5),
        ]
        board.publish([Read("host", 2, read)], state)
        clock.now_s += 2

    group = read_readings(str(journals)).groups["host"]
    assert (group.monotonic_ns, group.before_ns) == (102 * 10**9, 100 * 10**9)
    assert [(one.metric, one.value) for one in group.before] == [(names.DISK_IO.name, 1000.0)]


def test_written_when_something_was_read(journals, state):
    """It is written when something was read, and every five seconds anyway, not each time."""
    clock = Clock()
    board = Publisher(journals, clock=clock)
    board.publish([], state)
    first = (journals / FILE).stat().st_ino
    clock.now_s += 4
    board.publish([], state)
    same = (journals / FILE).stat().st_ino
    (journals / FILE).unlink()
    clock.now_s += 1
    board.publish([], state)

    assert first == same
    assert (journals / FILE).exists()
    board.close()
    assert not (journals / FILE).exists()


def test_warnings_of_what_the_agent_works_out(journals, state):
    """A wait for data and a loss, which no sensor reads, are warned of too."""
    clock = Clock()
    board = Publisher(journals, clock=clock)
    (rank,) = state.ranks.values()
    meter = Meter(rank)
    labels = {names.SECTION_NAME: "data.load", names.SECTION_CATEGORY: names.DATA_LOADING,
              names.ML_PHASE: names.TRAIN}  # fmt: skip
    for _ in range(20):
        meter.add(names.SECTION_SELF_TIME, labels, 2.0)
        meter.record(names.STEP_DURATION, {names.ML_PHASE: names.TRAIN}, np.array([5 * 10**9]))
        board.publish([], state)
        clock.now_s += 5
    state.accounts["spans/otlp"] = ItemAccount(lost={"ring_full": 3})
    board.publish([], state)

    found = read_readings(str(journals)).warnings
    assert [(one.rule, one.journal, one.summary) for one in found] == [
        ("DataWait", "0-1-1.journal", "training waits for data for 40% of its time"),
        ("TelemetryLost", "", "3 spans or metric points were lost"),
    ]


@pytest.mark.fault("F40")
def test_folder_that_is_gone(tmp_path, state):
    """A folder that somebody has removed is no reason to fail."""
    Publisher(tmp_path / "gone").publish([], state)

    assert not (tmp_path / "gone").exists()


class Sensor:
    """A source that says one thing."""

    def begin(self):
        return True

    def take(self):
        return [Measurement(MEMORY, {names.PROCESS_ROLE: "main"}, 7.0, pid=1)]

    def close(self):
        pass


def test_agent_tells_and_cleans_up(program, journals, run_folder):
    """An agent keeps the file while it runs, and takes it away when it leaves."""
    tail = Tail(journals, {program.journal.path: program.journal.buffer})
    agent = Agent(
        agent_folder(program.meta), tail, Options(policy=Policy()), SensorSet({"process": Sensor()})
    )
    agent._readings._due_s = 0.0
    for _ in range(3):
        agent.tick()
    during = read_readings(str(journals))
    agent.finish()

    (reading,) = during.groups["process"].readings
    assert (reading.journal, reading.value) == ("0-1-1.journal", 7.0)
    assert not (journals / FILE).exists()


def full(*times):
    """A disk that is 96 % full, or less where it is said."""
    return [[Measurement(names.FILESYSTEM_UTILIZATION.name, {names.MOUNTPOINT: "/data"}, share)]
            for share in times]  # fmt: skip


def test_a_warning_that_held_is_kept_in_the_run_folder(program, journals, run_folder):
    """Which, of what, since when, until when, the worst value and the limit; once a flush."""
    tail = Tail(journals, {program.journal.path: program.journal.buffer})
    sensor = Told(*full(0.96, 0.99, 0.97))
    agent = Agent(
        agent_folder(program.meta), tail, Options(policy=Policy()), machine(filesystem=sensor)
    )
    for _ in range(3):
        agent._readings._due_s = 0.0
        agent.tick()
    agent.mark()
    agent.finish()

    (kept,) = table(run_folder, "warnings")
    assert (kept["rank"], kept["id"], kept["labels"]) == (
        None, "disk_full", '{"system.filesystem.mountpoint": "/data"}',
    )  # fmt: skip
    assert (kept["value"], kept["threshold"]) == (0.99, 0.95)
    read = [row["time_ns"] for row in table(run_folder, "readings")]
    assert kept["start_ns"] < kept["end_ns"]
    assert read[0] <= kept["start_ns"]
    assert kept["end_ns"] >= read[-1]


def test_a_warning_is_kept_by_the_next_agent_too(program, journals, run_folder):
    """An agent that is killed has written down what held; another one stores it."""
    tail = Tail(journals, {program.journal.path: program.journal.buffer})
    sensor = Told(*full(0.96))
    killed = Agent(
        agent_folder(program.meta), tail, Options(policy=Policy()), machine(filesystem=sensor)
    )
    for _ in range(2):
        killed._readings._due_s = 0.0
        killed.tick()
    del killed, tail
    next_tail = Tail(journals, {program.journal.path: program.journal.buffer})
    agent = Agent(
        agent_folder(program.meta), next_tail, Options(policy=Policy()), machine(x=Told([]))
    )
    agent.mark()
    agent.finish()

    assert [row["value"] for row in table(run_folder, "warnings")] == [0.96]
