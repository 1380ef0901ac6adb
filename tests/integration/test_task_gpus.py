"""GPUs that the node's agent cannot see are read in the task that can: as under Slurm.

What a control group would hide, two scripts of NVML do: each process sees one GPU of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from nvml.scripted import LOST, Script, uuid_of
from runs import LIMIT_S, PROGRAMS, Ended, adds_up, environment
from servers.running import wait_until

from otel_mlperf import names
from otel_mlperf.journal.bulletin import read_readings
from otel_mlperf.journal.folder_lock import is_served
from otel_mlperf.journal.journal_folder import SHARED_MEMORY, SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
SHOWN = (0.5, 0.51)
"""Utilisation of the two GPUs."""


class Node:
    """Two ranks on one node, each with the only GPU that it sees, until they are told to end."""

    def __init__(self, folder: Path, library: Path, **settings: str) -> None:
        self.id, self.runs = uuid.uuid4().hex, folder / "runs"
        self.scripts: list[Script] = []
        self._names: dict[int, str] = {}
        self.variables = [self._variables(folder, library, rank) | settings for rank in (0, 1)]
        self.ranks = [self._start(0)]
        mine = Path(SHARED_MEMORY, f"otel_mlperf-{os.getuid()}")
        found = wait_until(lambda: [*mine.glob(f"{self.id}-*")], what="the first rank's journal")
        (self.journals,) = found
        wait_until(lambda: is_served(self.journals), what="the first rank's agent")
        self.ranks.append(self._start(1))

    def _variables(self, folder: Path, library: Path, rank: int) -> dict[str, str]:
        script = Script(folder / f"gpus-{rank}", 1)
        self.scripts.append(script)
        script.change({"0.uuid": uuid_of(rank), "0.utilization": f"{50 + rank} 20"})
        seen = script.environment(library)
        return {name: seen[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCRIPT")} | {
            "NVIDIA_VISIBLE_DEVICES": uuid_of(rank),
            "OTEL_MLPERF_RUN_ID": self.id,
            "OTEL_MLPERF_READINGS_INTERVAL": "400",
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }

    def _start(self, rank: int) -> subprocess.Popen:
        started = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "resting.py"), "--hold", "1048576"],
            env=environment(self.runs, **self.variables[rank]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.stdout.readline()
        return started

    def journal(self, rank: int) -> str:
        """The name of a rank's own journal."""
        if rank not in self._names:  # it is gone once it has been read to its end
            (path,) = self.journals.glob(f"{rank}-{self.ranks[rank].pid}-*{SUFFIX}")
            self._names[rank] = path.name
        return self._names[rank]

    def told(self) -> dict[tuple[str, str], float]:
        """Journal and GPU of each utilisation that the agent told last."""
        published = read_readings(str(self.journals))
        groups = published.groups.values() if published else ()
        return {
            (one.journal, one.labels[names.HW_ID]): one.value
            for group in groups
            for one in group.readings
            if one.metric == names.GPU_UTILIZATION.name
            and one.labels[names.HW_GPU_TASK] == "general"
        }

    def helpers(self, rank: int) -> list[int]:
        """The processes that were started for the journal of a rank."""
        wanted = str(self.journals / self.journal(rank)).encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (folder / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def start_again(self, rank: int) -> int:
        """What a rank does that misses its agent; returns the exit code of what it started."""
        command = [sys.executable, "-m", "otel_mlperf.agent", self.journals / self.journal(rank)]
        variables = environment(self.runs, **self.variables[rank])
        return subprocess.run(command, env=variables, timeout=LIMIT_S, check=False).returncode

    def end(self) -> Ended:
        """What is left when every rank and its helpers have ended."""
        errors = ""
        for rank in self.ranks:
            told = "" if rank.poll() is not None else "end\n"
            errors += rank.communicate(told, timeout=LIMIT_S)[1]
        return Ended(self.ranks[0].returncode, "", errors, self.runs, self.runs).settled()


@pytest.fixture
def node(tmp_path, nvml_library) -> Iterator[Node]:
    made = Node(tmp_path, nvml_library)
    yield made
    for rank in made.ranks:
        rank.kill()
        rank.communicate()


def test_gpu_hidden_from_the_agent_is_read_for_its_rank(node):
    """Each GPU is told of the rank that sees it, by one sampler, which ends with a killed rank."""
    both = {(node.journal(rank), uuid_of(rank)): SHOWN[rank] for rank in (0, 1)}
    wait_until(lambda: node.told() == both, what="readings of both GPUs")
    assert len(node.helpers(1)) == 1

    assert node.start_again(1) == 0
    assert len(node.helpers(1)) == 1
    node.ranks[1].send_signal(signal.SIGKILL)
    wait_until(lambda: not node.helpers(1), what="the sampler to end")
    alone = {(node.journal(0), uuid_of(0)): SHOWN[0]}
    wait_until(lambda: node.told() == alone, what="readings of the other GPU to end")

    read = node.end().rows(
        "SELECT DISTINCT rank, json_extract_string(labels, '$.\"hw.id\"') gpu, value FROM readings "
        f"WHERE name = '{names.GPU_UTILIZATION.name}' AND labels LIKE '%general%' ORDER BY ALL"
    )
    assert [tuple(row.values()) for row in read] == [
        (rank, uuid_of(rank), SHOWN[rank]) for rank in (0, 1)
    ]
    assert not node.journals.exists()


def test_gpu_lost_and_back_is_in_the_trace_of_its_rank(node):
    """Two moments of the run, with the driver's words, though a sampler has seen them."""
    both = {(node.journal(rank), uuid_of(rank)): SHOWN[rank] for rank in (0, 1)}
    wait_until(lambda: node.told() == both, what="readings of both GPUs")
    node.scripts[1].change({"0.lost": LOST})
    wait_until(lambda: len(node.told()) == 1, what="the loss")
    node.scripts[1].change({}, "0.lost")
    wait_until(lambda: node.told() == both, what="the GPU to come back")
    ended = node.end()

    found = ended.rows(
        "SELECT rank, name, json_extract_string(attributes, '$.\"hw.id\"') gpu, "
        "json_extract_string(attributes, '$.\"exception.message\"') said, parent_id "
        f"FROM spans WHERE category = '{names.DEVICE}' ORDER BY start_ns"
    )
    runs = ended.rows(f"SELECT span_id FROM spans WHERE name = '{names.SPAN_RUN}' AND rank = 1")
    run = runs[0]["span_id"]
    assert [tuple(row.values()) for row in found] == [
        (1, names.SPAN_DEVICE_LOST, uuid_of(1), "GPU is lost", run),
        (1, names.SPAN_DEVICE_BACK, uuid_of(1), None, run),
    ]
    assert adds_up(ended.accounts()["spans"]["store"])


def test_no_sampler_where_nothing_is_hidden(node):
    """What is started in the agent's own place finds that it would see the same, and ends."""
    wait_until((node.journals / "agent.gpus").exists, what="what the agent sees")

    assert node.start_again(0) == 0
    assert not (node.journals / f"{node.journal(0)}.gpus").exists()


def test_no_sampler_where_gpus_are_not_wanted(tmp_path, nvml_library):
    """A job that has switched their readings off has one agent and nothing beside it."""
    node = Node(tmp_path, nvml_library, OTEL_MLPERF_DISABLED_READINGS="gpu")
    try:
        wait_until(lambda: not node.helpers(1), what="the second agent to end")
        assert node.told() == {}
        assert node.ranks[1].poll() is None
    finally:
        node.end()
