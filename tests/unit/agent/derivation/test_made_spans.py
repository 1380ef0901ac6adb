"""The trace contains what no program recorded: device moments, and sections open for hours."""

from __future__ import annotations

import json
import time

import pyarrow.parquet as pq
import pytest
from by_hand import MS, Program, agent_folder
from runs import adds_up

from otel_mlperf import ids, names
from otel_mlperf.agent.derivation.made_spans import segment_spans
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.agent.readings.sensor_set import DirectSensor, SensorSet
from otel_mlperf.sensors.gpus.gpu import Device
from otel_mlperf.sensors.measurement import Measurement

GPUS = (Device("GPU-0", 0, "H100"), Device("GPU-1", 1, "H100"))


def losses(gpu: int, count: int, why: str = "") -> Measurement:
    device = GPUS[gpu]
    return Measurement(names.DEVICE_LOST.name, device.labels, count, device=device.uuid, text=why)


S = 10**9


class Scripted:
    """A sensor whose passes say one thing after the other, then the last again and again."""

    def __init__(self, *passes: list[Measurement]) -> None:
        self._passes = list(passes)

    def read(self) -> list[Measurement]:
        return self._passes.pop(0) if len(self._passes) > 1 else self._passes[0]

    def close(self) -> None:
        self._passes = [[]]


@pytest.fixture
def agent_that_reads(journals):
    def start(sensor: Scripted, *programs: Program) -> Agent:
        own = {p.journal.path: p.journal.buffer for p in programs}
        machine = SensorSet({"gpu": DirectSensor("gpu", sensor)}, lambda: GPUS)
        options = Options(policy=Policy(), readings_s=0.0)
        return Agent(agent_folder(programs[0].meta), Tail(journals, own), options, machine)

    return start


def spans(run_folder):
    """Rows of devices, in the order of time."""
    rows = []
    for part in sorted((run_folder / "tables" / "spans").glob("*.parquet")):
        rows += pq.read_table(part).to_pylist()
    chosen = (row for row in rows if row["category"] == names.DEVICE)
    return sorted(chosen, key=lambda row: row["start_ns"])


def moments(run_folder):
    """Name, GPU and what was said of each."""
    found = []
    for row in spans(run_folder):
        attributes = json.loads(row["attributes"])
        said = attributes.get(names.EXCEPTION_MESSAGE, "")
        found.append((row["name"], attributes[names.HW_ID], attributes[names.HW_NAME], said))
    return found


@pytest.mark.fault("F72")
def test_lost_gpu_that_comes_back_is_in_the_trace_of_the_run(
    program, agent_that_reads, run_folder
) -> None:
    """Each change is one span without length, with GPU and reason, and an item of the accounts."""
    ok, gone = [losses(0, 0)], [losses(0, 1, "GPU is lost")]
    agent = agent_that_reads(Scripted(ok, gone, gone, [losses(0, 1)], gone), program)
    for _ in range(6):
        agent.tick()
    program.stop(10)
    agent.run()

    lost = (names.SPAN_DEVICE_LOST, "GPU-0", "gpu0", "GPU is lost")
    back = (names.SPAN_DEVICE_BACK, "GPU-0", "gpu0", "")
    assert moments(run_folder) == [lost, back, lost]
    rows = spans(run_folder)
    trace = f"{ids.run_trace_id(program.meta.run_id, 0):032x}"
    assert {(row["trace_id"], row["parent_id"]) for row in rows} == {(trace, f"{program.run:016x}")}
    assert all(row["start_ns"] == row["end_ns"] > program.meta.unix_ns for row in rows)
    assert [row["status"] for row in rows] == ["error", "unset", "error"]
    report = json.loads((run_folder / "accounting" / "node.json").read_text())
    account = report["spans"]["store"]
    # Three moments, and the finding that they are.
    assert account["created"] == program.sections + 4
    assert account["delivered"] == program.sections + 4
    assert adds_up(account)


def test_moment_is_of_the_rank_that_uses_the_gpu(journals, run_folder, agent_that_reads) -> None:
    """That of a GPU which nobody uses is of the first rank."""
    ranks = [Program(journals, run_folder, rank, world=2) for rank in (0, 1)]
    spare = Device("GPU-9", 9, "H100")
    unused = Measurement(
        names.DEVICE_LOST.name, spare.labels, 1, device=spare.uuid, text="timed out"
    )
    sensor = Scripted([losses(1, 1, "GPU is lost"), unused])
    agent = agent_that_reads(sensor, *ranks)
    for _ in range(3):
        agent.tick()
    for rank in ranks:
        rank.stop(10)
    agent.run()
    for rank in ranks:
        rank.journal.release()

    found = {
        (row["rank"], json.loads(row["attributes"])[names.HW_ID])
        for row in spans(run_folder)
        if row["name"] == names.SPAN_DEVICE_LOST
    }
    assert found == {(1, "GPU-1"), (0, "GPU-9")}


def test_agent_that_goes_on_repeats_no_moment(program, agent_that_reads, run_folder) -> None:
    """What one agent saw, the next makes again from the log, under the same id, and once."""
    gone = [losses(0, 1, "GPU is lost")]
    first = agent_that_reads(Scripted([losses(0, 0)], gone), program)
    for _ in range(4):
        first.tick()
    seen = [span.span_id for span in first._processor.emitter.held["spans/store"]]
    del first
    other = agent_that_reads(Scripted(gone), program)
    again = [span.span_id for span in other._processor.emitter.held["spans/store"]]
    for _ in range(3):
        other.tick()
    program.stop(10)
    other.run()

    assert again == seen
    assert len(seen) == 2  # the finding, too
    assert [name for name, *_ in moments(run_folder)] == [names.SPAN_DEVICE_LOST]


@pytest.mark.fault("F31")
def test_section_open_for_hours_leaves_segments_once(program, agent_of, run_folder) -> None:
    """Every ten minutes a finished child with an id that follows from the section's."""
    now = time.monotonic_ns()
    span = program.open("train.epoch", now / MS)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    (journal,) = agent._state.journals.values()

    first = segment_spans(journal, now + 1_250 * S)
    again = segment_spans(journal, now + 1_300 * S)
    third = segment_spans(journal, now + 1_800 * S)

    assert [(round((s.start - now) / S), (s.end - s.start) / S, s.parent) for s in first] == [
        (0, 600, span),
        (600, 600, span),
    ]
    assert again == []
    assert len({s.span for s in first + third}) == 3


@pytest.mark.fault("F31")
def test_segment_is_in_the_trace_of_its_section(program, agent_of) -> None:
    """Also where that is a trace of the section's own."""
    now = time.monotonic_ns()
    alone = program.open("serve", now / MS, root=77, span=77)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    (journal,) = agent._state.journals.values()

    (segment,) = segment_spans(journal, now + 700 * S)
    assert segment.parent == alone
    assert segment.trace == ids.lone_trace_id("0123abcd", alone).to_bytes(16, "big")
