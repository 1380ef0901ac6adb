"""Everything is stored if the program is process 1 of a container.

A container has its own process ids, host name and ``/dev/shm``, and shares the run folder. When its
process 1 ends, the kernel kills what is left in it, the agent too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from runs import LIMIT_S, PROGRAMS, Ended, adds_up, environment, recover
from servers.running import wait_until

if TYPE_CHECKING:
    from pathlib import Path

_START = ("unshare", "-m", "-u", "-p", "--fork", "--kill-child", "--mount-proc",
          "--propagation", "private")  # fmt: skip


def _has_namespaces() -> bool:
    done = subprocess.run([*_START, "true"], capture_output=True, check=False)
    return done.returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or os.geteuid() != 0 or not _has_namespaces(),
        reason="needs root and namespaces",
    ),
]


class Containers:
    """Containers with one run folder and one host name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self._id = uuid.uuid4().hex

    def start(self, name: str, *arguments: str, shm: Path | None = None, **variables: str):
        """Starts ``loop.py`` as process 1 of a new container, and returns it with its counts."""
        mount = f"mount --bind {shm}" if shm else "mount -t tmpfs -o mode=1777 tmpfs"
        count = self.folder / name
        script = f'hostname trainer; {mount} /dev/shm; exec "$@"'
        program = [sys.executable, PROGRAMS / "loop.py", "--count", count, *arguments]
        process = subprocess.Popen(
            [*_START, "bash", "-c", script, "container", *program],
            env=environment(self.runs, OTEL_MLPERF_RUN_ID=self._id, OTEL_MLPERF_TRACE_EVERY="1",
                            **variables),
        )  # fmt: skip
        return process, Ended(0, "", "", self.runs, count)

    def run(self, name: str, *arguments: str, shm: Path | None = None, **variables: str) -> Ended:
        """Runs a program to its end."""
        process, ended = self.start(name, *arguments, shm=shm, **variables)
        ended.code = process.wait(LIMIT_S)
        return ended


@pytest.fixture
def containers(tmp_path):
    """Containers of this test."""
    return Containers(tmp_path)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_everything_is_stored_when_process_1_ends(containers, rank):
    """On every rank, without a summary too."""
    ended = containers.run("one", "--steps", "50", RANK=rank, WORLD_SIZE="2", LOCAL_RANK="0")

    assert ended.code == 0
    (row,) = ended.rows("SELECT count(*) AS n FROM steps")
    assert row["n"] == ended.counted[1] == 50
    account = ended.accounts()["spans"]["store"]
    assert adds_up(account)
    assert (account["lost"], account["pending"]) == ({}, 0)


def killed_at_200_steps(containers, **options):
    """A container whose process 1 is killed once the agent has logged steps."""
    process, killed = containers.start("killed", "--steps", "100000", "--pause", "0.005", **options)
    wait_until(lambda: killed.has_counted and killed.counted[1] >= 200, what="steps")
    wait_until(lambda: list(containers.runs.glob("*/agent/*/wal-*")), what="the agent's log")
    time.sleep(0.6)  # the agent reads twice a second; how much it has read is not asserted
    process.kill()
    process.wait()
    return killed


@pytest.mark.fault("F26")
@pytest.mark.parametrize("is_kept", [False, True], ids=["own /dev/shm", "/dev/shm of the pod"])
def test_a_container_that_is_started_again_adds_its_steps(containers, tmp_path, is_kept):
    """Both starts are process 1 of one host name; the first one's log is stored by the second."""
    shm = tmp_path / "shm" if is_kept else None
    if shm:
        shm.mkdir()
    killed = killed_at_200_steps(containers, shm=shm)
    again = containers.run("again", "--steps", "50", shm=shm)
    recover(containers.runs)

    steps = dict(
        tuple(row.values())
        for row in again.rows("SELECT restart, count(*) FROM steps GROUP BY restart")
    )
    assert steps[1] == again.counted[1] == 50
    # The kill may come between a step's end and its count.
    assert 0 < steps[0] <= killed.counted[1] + 1
    if is_kept:  # nothing that was recorded is gone
        assert steps[0] - killed.counted[1] in (0, 1)
    assert adds_up(again.accounts()["spans"]["store"])


@pytest.mark.fault("F26")
def test_the_log_of_a_killed_container_is_stored_by_recover(containers):
    """From any machine that mounts the run folder."""
    killed = killed_at_200_steps(containers)
    recover(containers.runs)

    (row,) = killed.rows("SELECT count(*) AS n FROM steps")
    assert 0 < row["n"] <= killed.counted[1] + 1  # killed between a step and its count
    account = killed.accounts()["spans"]["store"]
    assert adds_up(account)
    assert account["pending"] == 0


def test_two_containers_of_one_host_name_keep_their_rows_apart(containers):
    """Each has an agent of its own, and both store into one run folder."""
    shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    started = [
        containers.start(rank, "--steps", "200", "--pause", "0.01", RANK=rank, **shared)
        for rank in "01"
    ]
    codes = [process.wait(LIMIT_S) for process, _ in started]
    recover(containers.runs)

    assert codes == [0, 0]
    rows = started[0][1].rows("SELECT rank, count(*) AS n FROM steps GROUP BY rank ORDER BY rank")
    assert [row["n"] for row in rows] == [ended.counted[1] for _, ended in started] == [200, 200]
    folders = sorted(path.name for path in (started[0][1].folder / "agent").iterdir())
    # Where one has ended before the other one's agent starts, its folder is free again.
    assert folders in (["trainer"], ["trainer", "trainer-2"])


def test_children_record_where_shared_memory_is_full(tmp_path):
    """Their journals are in the run folder: an agent reads them there, without recover."""
    runs = tmp_path / "runs"
    script = 'mount -t tmpfs -o size=40m,mode=1777 tmpfs /dev/shm; exec "$@"'
    program = [sys.executable, PROGRAMS / "fork_when_full.py"]
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "bash", "-c", script, "full", *program],
        env=environment(runs),
        timeout=LIMIT_S,
        check=False,
    )

    ended = Ended(done.returncode, "", "", runs, tmp_path / "count")
    assert ended.code == 0
    wait_until(lambda: not list(runs.glob("*/journals/*.journal")), what="the child's journal")

    (row,) = ended.rows("SELECT sum(count) AS n FROM sections WHERE path = 'in_child'")
    assert row["n"] == 1000
