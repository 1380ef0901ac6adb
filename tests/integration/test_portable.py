"""Recording in portable mode, with ``/proc`` and ``/dev/shm`` hidden, as on macOS.

A mount namespace puts empty file systems there, so that nothing of ours reaches them unnoticed.
Python, torch, pyarrow and DuckDB work without them, too. Other calls that only Linux has are
not hidden: ``tests/unit/test_portability.py`` takes their names away.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer
from runs import LIMIT_S, PROGRAMS, Ended, adds_up, agent_of, ending, environment
from servers.build import REQUIRE
from servers.running import wait_until

pytestmark = pytest.mark.slow
HIDE = 'mount -t tmpfs none /proc && mount -t tmpfs -o ro none /dev/shm && exec "$@"'
NAMESPACE = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
HIDDEN = [*NAMESPACE, "sh", "-c", HIDE, "sh"]
TESTS = Path(__file__).parents[1]
OF_PROC = ("system.cpu.time", "system.memory.usage", "process.cpu.time", "process.memory.usage")
"""Readings that psutil has from ``/proc`` alone; numbers of CPUs and disks are elsewhere, too."""
EXISTING = (
    "unit/journal", "unit/agent/lifecycle", "integration/test_endings.py",
    "unit/recorder/lifecycle/test_process_life.py::test_start_without_room",
)  # fmt: skip
LOOK_THEMSELVES = (
    "its_process_is_still_its_owner or no_memory_for_a_journal_leaves_no_file or "
    "memory_that_others_hold_is_given_up or what_is_no_journal_is_refused or "
    "who_makes_room_keeps_its_priority"
)
"""Tests that read ``/proc`` themselves, and one of priorities that only threads of Linux have."""
FORKS = """
import gc, os
import otel_mlperf as om

gc.disable()  # long collections would be sections, too

with om.start("forks"):
    for _ in om.steps(range(10)):
        with om.span("forward"):
            pass
    child = os.fork()
    if not child:
        for _ in range(5):
            with om.span("in_child"):
                pass
        os._exit(0)
    os.waitpid(child, 0)
"""
UNTOUCHED = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(48, 4))
for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module", autouse=True)
def namespace() -> None:
    """Skips where file systems cannot be hidden, unless all must be tested."""
    with suppress(OSError):
        if subprocess.run([*HIDDEN, "true"], check=False, capture_output=True).returncode == 0:
            return
    (pytest.fail if os.environ.get(REQUIRE) else pytest.skip)("no mount namespaces here")


class Portable:
    """Programs that record into one folder, with a temporary folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.runs, self._temporary = folder, folder / "runs", folder / "tmp"
        self._temporary.mkdir()

    def start(self, *words: object, **variables: str) -> subprocess.Popen[str]:
        """Starts Python where ``/proc`` and ``/dev/shm`` are empty."""
        variables |= {"TMPDIR": str(self._temporary)}  # without /proc it is portable by itself
        return subprocess.Popen(
            [*HIDDEN, sys.executable, *map(str, words)],
            env=environment(self.runs, **variables),
            cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: object, **variables: str) -> Ended:
        """The same to its end."""
        process = self.start(*words, **variables)
        output, errors = process.communicate(timeout=LIMIT_S)
        return Ended(process.returncode, output, errors, self.runs, self._folder / "count")

    def loop(self, *words: str, **variables: str) -> Ended:
        """Runs ``loop.py``."""
        return self.run(
            PROGRAMS / "loop.py", "--count", self._folder / "count", *words, **variables
        )

    def journals(self) -> list[str]:
        """Journals in the temporary folder, where they are in portable mode."""
        return glob(f"{self._temporary}/otel_mlperf-*/*/*.journal")

    def settle(self) -> None:
        """Waits until the agent has read all journals and left."""
        places = f"{self._temporary}/otel_mlperf-*/*"
        wait_until(lambda: not self.journals() and not glob(places), what="the agent to leave")

    def command(self, *words: str) -> str:
        """What ``otel-mlperf`` prints."""
        done = self.run("-m", "otel_mlperf", *words)
        assert done.code == 0, done.errors
        return done.output

    def summary(self) -> dict[str, Any]:
        """The summary of the newest run."""
        summary: dict[str, Any] = json.loads(self.command("summary", "--json"))
        return summary


@pytest.fixture
def portable(tmp_path) -> Portable:
    """Programs in portable mode."""
    return Portable(tmp_path)


def is_whole(ended: Ended, created: int) -> None:
    """So many items were created, and all of them delivered, rolled up or not selected."""
    account = ended.accounts()["spans"]["store"]
    assert adds_up(account)
    assert (account["created"], account["lost"], account["pending"]) == (created, {}, 0)


def test_a_loop_is_recorded_and_summed_up(portable) -> None:
    """Steps and sections are exact, shares add up, and readings of ``/proc`` are absent."""
    ended = portable.loop("--steps", "40", "--pause", "0.005")
    portable.settle()
    summary = portable.summary()

    assert (ended.code, ended.errors) == (0, "")
    is_whole(ended, ended.counted[0])
    assert (summary["outcome"], summary["steps"]["count"]) == ("finished", 40)
    shares = {row["name"]: row["share"] for row in summary["steps"]["rows"]}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares, key=shares.get) == "forward"
    assert {call["name"]: call["count"] for call in summary["calls"]} == {
        "forward": 40, "backward": 40, "data wait": 40,
    }  # fmt: skip
    assert summary["counted"] == {"tokens": 120.0}
    assert ended.rows(f"SELECT name FROM readings WHERE name IN {OF_PROC}") == []


def test_a_killed_program_is_recovered(portable) -> None:
    """Without an agent the journal stays in the temporary folder, and one command reads it."""
    ended = portable.loop("--steps", "20", "--end", "kill", OTEL_MLPERF_AGENT="none")
    assert (ended.code, len(portable.journals())) == (-signal.SIGKILL, 1)

    portable.command("doctor", "--recover", "latest")

    is_whole(ended, ended.counted[0] + 3)  # run, step and forward were open
    assert (portable.summary()["outcome"], portable.journals()) == ("killed", [])


def test_two_ranks_are_one_run(portable, tmp_path) -> None:
    """One agent reads both journals, and each rank has all of its steps."""
    words = (PROGRAMS / "ranks.py", "--meet", tmp_path, "--steps", "12")
    who = {"WORLD_SIZE": "2", "OTEL_MLPERF_RUN_ID": "pair"}
    ranks = [portable.start(*words, RANK=rank, LOCAL_RANK=rank, **who) for rank in "01"]
    with ending(ranks):
        for process in ranks:
            assert process.wait(LIMIT_S) == 0
    portable.settle()

    summary = portable.summary()
    assert (summary["ranks"], summary["steps"]["count"]) == (2, 12)
    ended = Ended(0, "", "", portable.runs, tmp_path)
    assert ended.rows("SELECT DISTINCT rank FROM processes ORDER BY rank") == [
        {"rank": 0}, {"rank": 1},
    ]  # fmt: skip
    assert adds_up(ended.accounts()["spans"]["store"])
    calls = {call["name"]: call["count"] for call in summary["calls"]}
    assert (calls["forward"], calls["backward"]) == (24, 24)


def test_an_agent_that_was_killed_is_followed_by_another(portable, tmp_path) -> None:
    """The program starts it, and what is stored in the end is what was recorded."""
    words = (PROGRAMS / "loop.py", "--count", tmp_path / "count", "--until", tmp_path / "until")
    process = portable.start(*words, "--steps", 1 << 30, "--pause", "0.005")
    with ending([process]):
        wait_until(lambda: glob(f"{portable.runs}/*/accounting/*"), what="its first tables")
        killed = agent_of(portable.runs)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: agent_of(portable.runs) not in (None, killed), what="another agent")
        (tmp_path / "until").touch()
        process.communicate(timeout=LIMIT_S)
    portable.settle()

    ended = Ended(process.returncode, "", "", portable.runs, tmp_path / "count")
    assert ended.code == 0
    is_whole(ended, ended.counted[0])
    assert portable.summary()["steps"]["count"] == ended.counted[1]


def test_a_forked_child_has_a_journal_of_its_own(portable) -> None:
    """What parent and child record is stored, and nothing of it twice."""
    ended = portable.run("-c", FORKS)
    portable.settle()

    assert (ended.code, ended.errors) == (0, "")
    is_whole(ended, 1 + 10 * 3 + 5)
    calls = {call["name"]: call["count"] for call in portable.summary()["calls"]}
    assert calls["in_child"] == 5


def test_an_untouched_script_is_recorded(portable, tmp_path) -> None:
    """``otel-mlperf run`` finds the steps of a loop of torch."""
    (tmp_path / "train.py").write_text(UNTOUCHED)
    ended = portable.run("-m", "otel_mlperf", "run", "train.py")
    portable.settle()

    assert ended.code == 0, ended.errors
    summary = portable.summary()
    assert summary["steps"]["count"] == 12
    assert {"forward", "backward", "optimizer"} <= {row["name"] for row in summary["steps"]["rows"]}


def test_spans_arrive_at_a_server(portable, tmp_path) -> None:
    """The ids that the server accepted are those of the run folder, each once."""
    with FaultServer(tmp_path) as server:
        ended = portable.loop(
            "--steps", "20", OTEL_EXPORTER_OTLP_ENDPOINT=server.url, OTEL_MLPERF_TRACE_EVERY="1"
        )
        portable.settle()
        arrived = [span["span_id"] for span in server.spans()]

    stored = {row["span_id"] for row in ended.rows("SELECT span_id FROM spans")}
    assert ended.errors == ""
    assert len(arrived) == len(set(arrived)) == ended.counted[0]
    assert set(arrived) == stored


def test_existing_tests_hold(tmp_path) -> None:
    """Tests of journals, of agents and of how programs end pass in portable mode, too."""
    files = [str(TESTS / name) for name in EXISTING]
    options = [
        "-q", "--tests", "quick", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "t"),
        "-k", f"not ({LOOK_THEMSELVES})",
    ]  # fmt: skip
    done = subprocess.run(
        [*HIDDEN, sys.executable, "-m", "pytest", *options, *files],
        env=os.environ | {"OTEL_MLPERF_PORTABLE": "1", "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:]
