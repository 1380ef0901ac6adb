"""How do tests start a program that records, and read what it left?"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from glob import glob  # unlike pathlib's it bears a folder that goes away
from pathlib import Path
from typing import Any

from servers.running import wait_until

from otel_mlperf.journal.folder import SHARED_MEMORY, SUFFIX
from otel_mlperf.store.reader import Store
from otel_mlperf.store.runs import list_runs

PROGRAMS = Path(__file__).parent / "programs"
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "VIRTUAL_ENV")


def environment(runs: Path, **variables: str) -> dict[str, str]:
    """An environment without the caller's settings; runs go to the folder ``runs``."""
    clean = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return clean | {"OTEL_MLPERF_DIR": str(runs), "OMP_NUM_THREADS": "1"} | variables


@dataclass
class Ended:
    """A program that has ended, and the run that it left."""

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
        run_id = json.loads((self.folder / "run.json").read_text())["id"]
        place = Path(SHARED_MEMORY, f"otel_mlperf-{os.getuid()}", run_id)
        wait_until(lambda: not glob(f"{place}/*{SUFFIX}"), 30, "journals to be read")
        wait_until(lambda: not place.exists(), 60, "the agent to leave")
        return self


def run_program(runs: Path, *arguments: str, program: str = "loop.py", **variables: str) -> Ended:
    """Runs a program of ``tests/programs`` to its end, which is not yet the agent's."""
    count = runs.with_suffix(".count")
    command = [sys.executable, str(PROGRAMS / program), "--count", str(count), *arguments]
    done = subprocess.run(
        command,
        env=environment(runs, **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr, runs, count)


def adds_up(account: dict[str, Any]) -> bool:
    """Whether created = delivered + rolled_up + unselected + lost + pending."""
    outcomes = sum(account[name] for name in ("delivered", "rolled_up", "unselected", "pending"))
    return account["created"] == outcomes + sum(account["lost"].values())
