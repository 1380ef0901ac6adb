"""Starting and ending of programs that record, and reading of their runs."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob  # unlike pathlib's it bears a folder that goes away
from pathlib import Path
from typing import TYPE_CHECKING, Any

import warm_python
from servers.running import wait_until

from otel_mlperf.journal.journal_folder import SUFFIX, folders_of_run
from otel_mlperf.store.run_folders import list_runs
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LIMIT_S = 300.0
"""For a program that takes seconds: so long only on a machine that is very busy."""
PROGRAMS = Path(__file__).parent / "programs"
LOUD = {"OTEL_MLPERF_CONSOLE": "true"}
"""Variables with which a program prints its summary."""
_INHERITED = (
    "PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "VIRTUAL_ENV", "OTEL_MLPERF_PORTABLE",
)  # fmt: skip


def environment(runs: Path, **variables: str) -> dict[str, str]:
    """An environment without the caller's settings; runs go to the folder ``runs``.

    Programs print no summary, which would cost more than most of them, but with `LOUD`.
    """
    clean = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    quiet = {"OTEL_MLPERF_CONSOLE": "false", "OMP_NUM_THREADS": "1"}
    return clean | quiet | {"OTEL_MLPERF_DIR": str(runs)} | variables


@dataclass
class Ended:
    """A program, mostly one that has ended, and the run that it left."""

    code: int
    output: str
    errors: str
    runs: Path
    count: Path

    @property
    def counted(self) -> tuple[int, int, int]:
        """What the program itself counted: sections, steps, tokens."""
        return struct.unpack("<QQQ", self.count.read_bytes())

    @property
    def has_counted(self) -> bool:
        """Whether a step of it has ended."""
        return self.count.exists() and self.count.stat().st_size > 0 and self.counted[1] > 0

    @property
    def folder(self) -> Path:
        """The folder of the one run."""
        (run,) = list_runs(self.runs)
        return run.path

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The answer of the run's tables."""
        return Store(self.folder).records(sql)

    def accounts(self) -> dict[str, Any]:
        """Signal to destination to the terms of the identity, of this one node."""
        (file,) = (self.folder / "accounting").glob("*.json")
        return json.loads(file.read_text())

    def settled(self) -> Ended:
        """Waits until the agent has read everything and left."""
        settle(self.folder)
        return self

    @property
    def summary(self) -> str:
        """What ``otel-mlperf summary`` prints of the run, once the agent has left."""
        command = [sys.executable, "-m", "otel_mlperf", "summary", str(self.folder)]
        return warm_python.check_output(command, env=environment(self.runs), text=True)  # type: ignore[no-any-return]


def recover(runs: Path) -> None:
    """Runs ``otel-mlperf doctor --recover`` for the newest run."""
    command = [sys.executable, "-m", "otel_mlperf", "doctor", "--recover", "latest"]
    warm_python.run(command, env=environment(runs), check=True, stdout=subprocess.DEVNULL)


def settle(run: Path) -> None:
    """Waits until the agent of the run in that folder has read everything and left.

    Before that the tables lack what it has not written yet: a program waits 1.5 s for it, a
    command 2 s, and a busy machine takes longer.
    """
    run_id = json.loads((run / "run.json").read_text())["id"]
    place = Path(folders_of_run(run_id, run)[0])
    wait_until(lambda: not glob(f"{place}/*{SUFFIX}"), what="journals to be read")
    wait_until(lambda: not place.exists(), what="the agent to leave")


@contextmanager
def ending(processes: Sequence[subprocess.Popen[Any]]) -> Iterator[None]:
    """None of ``processes`` is left behind, whatever happens."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


class Running:
    """``loop.py``, or another program that goes on until it is told to end."""

    def __init__(
        self, runs: Path, *arguments: str, program: str = "loop.py", **variables: str
    ) -> None:
        self.runs = runs
        self._count, self._until = runs.with_suffix(".count"), runs.with_suffix(".until")
        command = [sys.executable, PROGRAMS / program, "--count", self._count]
        command += ["--until", self._until, "--steps", str(1 << 30), *arguments]
        self._process = warm_python.Popen(
            command, env=environment(runs, **variables), stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        with ending([self._process]):
            pass

    @property
    def has_counted(self) -> bool:
        """Whether a step of it has ended."""
        return Ended(0, "", "", self.runs, self._count).has_counted

    def end(self) -> Ended:
        """Lets it finish; its agent goes on."""
        self._until.touch()
        _, errors = self._process.communicate(timeout=LIMIT_S)
        return Ended(self._process.returncode, "", errors, self.runs, self._count)


def run_program(runs: Path, *arguments: str, program: str = "loop.py", **variables: str) -> Ended:
    """Runs a program of ``tests/programs`` to its end, which is not yet the agent's."""
    count = runs.with_suffix(".count")
    command = [sys.executable, str(PROGRAMS / program), "--count", str(count), *arguments]
    done = warm_python.run(
        command,
        env=environment(runs, **variables),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr, runs, count)


def adds_up(account: dict[str, Any]) -> bool:
    """Whether created = delivered + rolled_up + unselected + lost + pending."""
    outcomes = sum(account[name] for name in ("delivered", "rolled_up", "unselected", "pending"))
    return account["created"] == outcomes + sum(account["lost"].values())


def agent_of(runs: Path) -> int | None:
    """The process that serves the one run in ``runs``, if any."""
    return next(iter(agents_of(runs)), None)


def kill_two_agents(runs: Path, written: Callable[[Path], int]) -> None:
    """Kills two agents of a run, one after the other, each once more is ``written``, as after."""
    known = 0
    for _ in range(2):
        wait_until(lambda more=known: written(runs) > more, what="points")
        killed = wait_until(lambda: agent_of(runs), what="the agent")
        known = written(runs)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda old=killed: agent_of(runs) not in (None, old), what="another")
    wait_until(lambda: written(runs) > known, what="points after it")


def agents_of(runs: Path) -> list[int]:
    """The processes that read the one run in ``runs``: each holds its log file open."""
    found = []
    for place in Path("/proc").glob("[0-9]*/fd"):
        try:
            targets = [os.readlink(fd) for fd in place.iterdir()]
        except OSError:
            continue
        if any(t.startswith(str(runs)) and t.endswith("agent.log") for t in targets):
            found.append(int(place.parent.name))
    return found
