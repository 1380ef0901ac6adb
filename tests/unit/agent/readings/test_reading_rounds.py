"""When sources are read, whose is what they say, and what becomes of it."""

from __future__ import annotations

import json
import threading

import pyarrow.parquet as pq
import pytest
from by_hand import Program
from told_sensors import LOAD, Told, look, machine, values

from otel_mlperf import names
from otel_mlperf.agent.readings.reading_rounds import ReadingRounds, find_owners
from otel_mlperf.agent.readings.sensor_set import DirectSensor, SensorSet
from otel_mlperf.journal.layout import Word
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.sensors.gpus.gpu import Device
from otel_mlperf.sensors.measurement import Measurement
from otel_mlperf.sensors.timed_sensor import TimedSensor

GPUS = tuple(Device(f"GPU-{number}", number, "H100") for number in range(4))


def utilization(gpu: int, value: float = 0.5) -> Measurement:
    device = GPUS[gpu]
    return Measurement(names.GPU_UTILIZATION.name, device.labels, value, device=device.uuid)


def energy(joules: float) -> Measurement:
    return Measurement(names.HW_ENERGY.name, GPUS[0].labels, joules, device=GPUS[0].uuid)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def meta(rank: int = 0, pid: int = 1, **visible: str) -> JournalMeta:
    return JournalMeta(
        run_id="r", run_name="n", run_folder="/x", service="s", host="h", pid=pid, rank=rank,
        local_rank=rank, run_span=7, monotonic_ns=5, unix_ns=9, visible=visible,
    )  # fmt: skip


def stored(run_folder):
    rows = []
    for part in sorted((run_folder / "tables" / "readings").glob("*.parquet")):
        rows += pq.read_table(part).to_pylist()
    return [row for row in rows if not row["name"].startswith("otel_mlperf.")]


def test_each_reading_is_of_its_rank_its_device_or_the_node(
    journals, run_folder, agent_with
) -> None:
    """A process's are its rank's, a GPU's of the rank that uses it, all others the node's."""
    ranks = [Program(journals, run_folder, rank, world=2) for rank in (0, 1)]
    ranks[1].journal.release()
    said = [LOAD, utilization(0), utilization(3), Measurement(names.PROCESS_UPTIME.name, {}, 7, 1)]
    agent = agent_with(machine(GPUS, host=Told(said)), ranks[0])
    look(agent)
    look(agent)
    ranks[0].stop(10)
    agent.run()
    ranks[0].journal.release()

    by_rank = {(row["rank"], row["name"], row["labels"]) for row in stored(run_folder)}
    assert by_rank == {
        (0, names.PROCESS_UPTIME.name, "{}"),
        (0, names.GPU_UTILIZATION.name, json.dumps(GPUS[0].labels)),
        (None, names.GPU_UTILIZATION.name, json.dumps(GPUS[3].labels)),
        (None, names.LOAD_1M.name, "{}"),
    }


@pytest.mark.fault("F74")
def test_reading_of_a_process_that_has_just_ended_is_nobodys(program, agent_with) -> None:
    """It is left out: the node is no process."""
    gone = Measurement(names.PROCESS_UPTIME.name, {}, 7, 99)
    agent = agent_with(machine(process=Told([gone, LOAD])), program)
    look(agent)
    look(agent)

    assert values(agent._state.series) == {(names.LOAD_1M.name,): 1.5}


def test_gpus_are_mapped_by_what_the_processes_started_with(tmp_path) -> None:
    """The list of a rank counts, not the number alone; what it cannot see is not its own."""
    mains = {
        "a": meta(0, CUDA_VISIBLE_DEVICES="2,3"),
        "b": meta(1, CUDA_VISIBLE_DEVICES="2,3"),
        "c": meta(2, CUDA_VISIBLE_DEVICES="GPU-0"),
        "d": meta(3, CUDA_VISIBLE_DEVICES=""),
    }

    owners = find_owners(GPUS, mains, {}, tmp_path)
    assert owners == {"GPU-2": "a", "GPU-3": "b", "GPU-0": "c"}


def test_gpu_that_several_ranks_claim_is_of_the_first(tmp_path) -> None:
    """Sums over ranks stay right: a device counts once."""
    mains = {"b": meta(1, CUDA_VISIBLE_DEVICES="0"), "a": meta(0, CUDA_VISIBLE_DEVICES="0")}

    assert find_owners(GPUS, mains, {}, tmp_path) == {"GPU-0": "a"}


def test_gpu_that_several_tasks_claim_is_of_the_agents_task(tmp_path) -> None:
    """Where each task counts from zero the agent sees that of the task which it is in."""
    for pid, group in (("self", "task_1"), ("10", "task_0"), ("11", "task_1")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cgroup").write_text(f"0::/job/{group}\n")
    mains = {
        "a": meta(0, 10, CUDA_VISIBLE_DEVICES="0"),
        "b": meta(1, 11, CUDA_VISIBLE_DEVICES="0"),
    }

    assert find_owners(GPUS[:1], mains, {}, tmp_path) == {"GPU-0": "b"}


def test_pytorch_knows_better_which_gpus_a_rank_uses(program, agent_with) -> None:
    """Once there are tensors on a GPU it is the rank's, whatever its number says; also several."""
    agent = agent_with(
        machine(GPUS, gpu=Told([utilization(number) for number in range(4)])), program
    )
    used = names.GPU_UTILIZATION.name
    look(agent)
    look(agent)
    (rank,) = agent._state.ranks.values()
    before = set(values(rank.series))
    for number in (2, 3):
        labels = [[names.DEVICE_INDEX, "0"], [names.HW_ID, f"GPU-{number}"]]
        program.journal.entry(["cell", "gauge", names.CUDA_MEMORY.name, "By", labels])
    look(agent)
    agent.tick()

    assert before == {(used, "gpu0")}
    assert set(values(rank.series)) == {(used, "gpu2"), (used, "gpu3")}


def test_sources_are_read_once_in_an_interval(tmp_path) -> None:
    """As soon as there is a rank, for rates half a second later, then every five seconds."""
    clock, sensor = Clock(), Told([LOAD])
    readings = ReadingRounds(machine(host=sensor), 5.0, clock=clock)
    assert readings.step({}) == []
    seen = []
    for _ in range(240):
        seen += [clock.now_s for _ in readings.step({"a": meta()})]
        clock.now_s += 0.125
    clock.now_s += 60
    readings.step({"a": meta()})
    readings.step({"a": meta()})

    # A time that was missed is not made up for.
    assert seen == [100.0, 100.5, 105.0, 110.0, 115.0, 120.0, 125.0]
    assert sensor.reads == 8


def test_new_ranks_are_read_soon_and_together(tmp_path) -> None:
    """Those that come within a second share one reading."""
    clock, sensor = Clock(), Told([LOAD])
    readings = ReadingRounds(machine(host=sensor), 60.0, clock=clock)
    readings.step({"a": meta()})
    for new in range(3):
        clock.now_s += 0.3
        readings.hasten()
        readings.step({"a": meta(), "b": meta(new)})
    assert sensor.reads == 2  # the first one and its second
    clock.now_s += 0.5
    readings.step({"a": meta(), "b": meta(1)})

    assert sensor.reads == 3


def test_first_seconds_of_steps_are_read_at_each_look(tmp_path) -> None:
    """Host and processes, GPUs each second; for ten, however often it is looked; then as usual."""
    clock, host, gpu, disk = Clock(), Told([LOAD]), Told([LOAD]), Told([LOAD])
    sensors = machine(host=host, gpu=gpu, filesystem=disk)
    readings = ReadingRounds(sensors, 5.0, clock=clock)
    readings.step({"a": meta()})
    seen = []
    for _ in range(120):
        clock.now_s += 0.25
        began = {"a"} if clock.now_s >= 102 else set()
        seen += [(event.source, clock.now_s) for event in readings.step({"a": meta()}, began)]

    assert [s for name, s in seen if name == "host"] == [
        *(100.5, *(102 + n / 2 for n in range(20))),
        *(115.0, 120.0, 125.0, 130.0),
    ]
    seldom = [115.0, 120.0, 125.0, 130.0]
    assert [s for name, s in seen if name == "gpu"] == [*(102.0 + n for n in range(10)), *seldom]
    assert [s for name, s in seen if name == "filesystem"] == [105.0, 110.0, *seldom]


def test_rank_has_readings_since_its_first_step(program, agent_with, run_folder) -> None:
    """Though the interval is long, and its set-up was."""
    host = Told([LOAD])
    agent = agent_with(machine(host=host), program, readings_s=3600.0)
    for _ in range(2):  # the first finds the rank, the second reads
        look(agent)
    before = host.reads
    program.journal.words[Word.STEP_TIME] = 1
    look(agent)

    assert (before, host.reads) == (1, 2)


@pytest.mark.fault("F73")
def test_source_that_hangs_keeps_no_other_waiting(tmp_path) -> None:
    """Readings of the others go on; of the hanging one its lateness is said, and no value."""
    hangs, clock = threading.Event(), Clock()

    class Hanging(Told):
        def read(self):
            hangs.wait()
            return super().read()

    gpu = TimedSensor("gpu", Hanging([utilization(0)]), clock=clock)
    host = Told([LOAD])
    both = SensorSet({"gpu": gpu, "host": DirectSensor("host", host)}, lambda: GPUS)
    readings = ReadingRounds(both, 5.0, clock=clock)
    try:
        events = []
        for _ in range(100):
            events += readings.step({"a": meta()})
            clock.now_s += 0.1
    finally:
        hangs.set()
        readings.close()
    late = [
        (reading.name, reading.value)
        for event in events
        if event.source == "gpu"
        for reading in event.readings
        if reading.name != names.SAMPLER_DURATION.name
    ]

    assert host.reads == 3  # one of them right after the first one
    assert late == [(names.SAMPLER_LATE.name, 1.0), (names.SAMPLER_LATE.name, 2.0)]


def test_what_is_not_said_any_more_has_ended(program, agent_with) -> None:
    """A device that stops answering is absent, whatever else its source says, and may come back."""
    sensor = Told([utilization(0), utilization(1)], [utilization(1)], [utilization(0, 0.7)])
    agent = agent_with(machine(GPUS, gpu=sensor, host=Told([LOAD])), program)
    found = []
    look(agent)
    for _ in range(3):
        agent.tick()
        (rank,) = agent._state.ranks.values()
        found.append({**values(agent._state.series), **values(rank.series)})

    load, used = {(names.LOAD_1M.name,): 1.5}, names.GPU_UTILIZATION.name
    assert found == [
        {(used, "gpu0"): 0.5, (used, "gpu1"): 0.5} | load,
        {(used, "gpu1"): 0.5} | load,
        {(used, "gpu0"): 0.7} | load,
    ]


def test_agent_that_goes_on_repeats_no_reading(program, agent_with, run_folder) -> None:
    """What an agent had read and not stored is stored once by the next, with its time."""
    agent = agent_with(machine(host=Told([LOAD])), program)
    for _ in range(3):
        agent.tick()
    times = [one.read_ns for one in agent._state.series.values()]
    del agent
    other = agent_with(machine(host=Told([])), program)
    replayed = [one.read_ns for one in other._state.series.values()]
    program.stop(10)
    other.run()

    assert replayed == times
    assert len(stored(run_folder)) == 2


def test_totals_that_began_before_start_where_they_are(program, agent_with) -> None:
    """A counter starts at its first reading, and anew where it has fallen; it never falls else."""
    readings = [5000.0, 5100.0, 5099.0, 5200.0, 7.0, 9.0]
    agent = agent_with(machine(GPUS, gpu=Told(*[[energy(one)] for one in readings])), program)
    look(agent)
    found = []
    for _ in readings:
        agent.tick()
        (rank,) = agent._state.ranks.values()
        (one,) = [s for s in rank.series.values() if s.metric == names.HW_ENERGY.name]
        found.append((one.value, one.start_ns, one.read_ns))

    assert [value for value, _, _ in found] == [5000.0, 5100.0, 5100.0, 5200.0, 7.0, 9.0]
    starts = [start for _, start, _ in found]
    first, again = found[0][2], found[4][2]
    assert starts == [first] * 4 + [again] * 2


def test_what_a_journal_lost_beside_rows_is_told(program, journals, run_folder, agent_of) -> None:
    """By reason, over all processes of the rank, also those that have ended."""
    child = Program(journals, run_folder, name="0-2-1", is_child=True)
    program.journal.count(Word.LOST_CELLS, 3)
    child.journal.count(Word.LOST_CELLS, 2)
    child.journal.count(Word.INTERNAL_ERRORS, 1)
    agent = agent_of(program, child)
    look(agent)
    child.journal.close()
    look(agent)
    agent.finish()
    child.journal.release()
    (rank,) = agent._state.ranks.values()
    lost = {
        one.labels[names.ERROR_TYPE]: one.value
        for one in rank.series.values()
        if one.metric == names.JOURNAL_LOST.name
    }

    assert lost == {"cells": 5, "internal": 1}
