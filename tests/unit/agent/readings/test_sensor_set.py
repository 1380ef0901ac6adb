"""The chosen sensors are read at their intervals, and a faulty one costs only its readings."""

from __future__ import annotations

import psutil
import pytest
from by_hand import agent_folder
from kernel_files import write_files
from told_sensors import LOAD, Told, look, machine, values

from otel_mlperf import names
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options, read_options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.agent.readings.sensor_set import this_machine


def test_level_and_switches_choose_the_sources(tmp_path) -> None:
    """Each source can be switched off; the level ``none`` reads nothing, not even ourselves."""

    def sources(**environ: str) -> list[str]:
        options = read_options({f"OTEL_MLPERF_{key}": value for key, value in environ.items()})
        made = this_machine(options, tmp_path, dict, tmp_path)
        for source in made.sources.values():
            source.close()
        return list(made.sources)

    assert sources() == ["host", "process", "gpu", "task_gpus", "filesystem", "agent"]
    assert sources(DISABLED_READINGS="gpu, host") == ["process", "filesystem", "agent"]
    assert sources(READINGS="none") == []


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [({}, 5.0), ({"OTEL_MLPERF_READINGS": "comprehensive"}, 1.0),
     ({"OTEL_MLPERF_READINGS": "detailed", "OTEL_MLPERF_READINGS_INTERVAL": "250"}, 0.25)],
)  # fmt: skip
def test_interval_is_that_of_the_level_unless_given(environ, seconds) -> None:
    """Five seconds; one at the highest level."""
    assert read_options(environ).readings_s == seconds


def test_sensor_with_a_fault_costs_its_readings_alone(program, agent_with) -> None:
    """An exception in one sensor ends neither the agent nor the other sensors."""

    class Broken(Told):
        def read(self):
            raise ZeroDivisionError

    agent = agent_with(machine(process=Broken([]), host=Told([LOAD])), program)
    look(agent)
    look(agent)
    agent.finish()

    assert values(agent._state.series) == {(names.LOAD_1M.name,): 1.5}


def test_agent_says_how_it_does_itself(program, agent_with, run_folder) -> None:
    """CPU time and memory of its process, and how much it found unread in the journal at once."""
    options = read_options({"OTEL_MLPERF_DISABLED_READINGS": "host,process,gpu,filesystem"})
    tail = Tail(run_folder.parent / "journals", {program.journal.path: program.journal.buffer})
    agent = Agent(agent_folder(program.meta), tail, options)
    agent.tick()
    for i in range(50):
        program.step(i * 10)
    agent.tick()
    agent._readings._due_s = 0.0
    agent.tick()
    (rank,) = agent._state.ranks.values()
    of_rank = {one.metric: one.value for one in rank.series.values() if one.source}
    of_node = {one.metric: one.value for one in agent._state.series.values() if one.source}

    assert of_rank[names.JOURNAL_USAGE.name] == (50 * 4) * 64
    assert of_rank[names.JOURNAL_LIMIT.name] == (1 << 14) * 64
    assert of_node[names.AGENT_CPU_TIME.name] > 0
    assert 10 << 20 < of_node[names.AGENT_MEMORY.name] < 10 << 30


def test_container_is_told_its_own_limits(program, agent_with, tmp_path, monkeypatch) -> None:
    """Of a machine of 8 processors and 64 MB a pod that may use 2.5 of them and 32 MB of that."""
    pod = "sys/fs/cgroup/pod/"
    write_files(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 64000 kB\nMemFree: 1000 kB\nMemAvailable: 9000 kB\n"
            "Buffers: 1 kB\nCached: 1 kB\nShmem: 1 kB\nActive: 1 kB\nInactive: 1 kB\n",
            "proc/1/status": "Cpus_allowed_list:\t0-7\n",
            "proc/1/cgroup": "0::/pod\n",
            "proc/1/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            f"{pod}memory.max": "32000000\n",
            f"{pod}cpu.max": "250000 100000\n",
            f"{pod}cpu.stat": "nr_periods 90\nnr_throttled 30\nthrottled_usec 1500000\n",
        },
    )
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    options = Options(policy=Policy(), readings="basic", sources=frozenset({"host", "process"}))
    here = this_machine(options, tmp_path, dict, proc=tmp_path / "proc", sys=tmp_path / "sys")
    agent = agent_with(here, program)
    look(agent)
    look(agent)
    (rank,) = agent._state.ranks.values()

    assert values(rank.series) == {
        (names.CGROUP_CPU_LIMIT.name,): 2.5,
        (names.CGROUP_MEMORY_LIMIT.name,): 32_000_000,
        (names.CGROUP_PERIODS.name,): 90,
        (names.CGROUP_THROTTLED_PERIODS.name,): 30,
        (names.CGROUP_THROTTLED_TIME.name,): 1.5,
    }
    assert values(agent._state.series)[names.SYSTEM_MEMORY_LIMIT.name,] == 64_000 << 10
