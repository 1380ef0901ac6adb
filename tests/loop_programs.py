"""Launcher of the loops of ``tests/programs``, and the true facts about each."""

from __future__ import annotations

import ast
import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import warm_python
from runs import LIMIT_S, PROGRAMS, Ended, environment

if TYPE_CHECKING:
    from pathlib import Path

_FOLDERS = (PROGRAMS / "loops", PROGRAMS / "frameworks")
_PATHS = {path.stem: path for folder in _FOLDERS for path in folder.glob("*.py")}
MARKS = _PATHS.pop("marks")
LOOPS, FRAMEWORKS = (
    sorted(name for name, path in _PATHS.items() if path.parent == folder) for folder in _FOLDERS
)
PARTS = {
    "batches": "data.load",
    "forwards": "forward",
    "backwards": "backward",
    "updates": "optimizer",
}
"""What is counted of each step, and the name of its section."""
BETWEEN = {"validations": "validate", "checkpoints": "checkpoint"}
"""The same of what steps are interrupted for."""


class TrueCounts(NamedTuple):
    """What happens when a program is started, as it says itself."""

    counts: dict[str, Any]
    """By kind: of all steps together, or of each where they differ."""
    unseen: list[str]
    """Kinds that nobody can see who does not know the program."""
    unmarked: list[str]
    """Kinds inside a framework that no stopwatch is placed at, or that happen more often there."""
    style: str = "untouched"
    """In which it is recorded; ``api`` where nobody can see its loop."""

    @property
    def first(self) -> int:
        """Number of its first step, which the program knows and nobody else."""
        return self.counts.get("first", 0)

    @property
    def steps(self) -> list[dict[str, int]]:
        """Calls of each kind of section in each step that was finished."""
        return [
            {name: each for kind, name in PARTS.items() if (each := self._in_step(kind, n))}
            for n in range(self.counts["steps"])
        ]

    @property
    def epochs(self) -> list[int | None]:
        """The epoch of each step, where the program has any."""
        return [epoch for epoch, steps in enumerate(self.counts["epochs"]) for _ in range(steps)]

    @property
    def unfinished(self) -> dict[str, int]:
        """The same of the step in which the program was stopped, if it was."""
        return {PARTS[kind]: count for kind, count in self.counts.get("unfinished", {}).items()}

    @property
    def calls(self) -> dict[str, int]:
        """Calls of each kind of section in the whole program."""
        return {
            name: sum(count) if isinstance(count, list) else count
            for kind, name in (PARTS | BETWEEN).items()
            if (count := self.counts[kind])
        }

    def _in_step(self, kind: str, n: int) -> int:
        count = self.counts[kind]
        if isinstance(count, list):
            return int(count[n])
        finished = count - self.counts.get("unfinished", {}).get(kind, 0)
        each, rest = divmod(finished, self.counts["steps"])
        assert rest == 0, f"{kind} differ from step to step: name each"
        return each


def true_counts(name: str) -> list[TrueCounts]:
    """Of each start of the program, one after the other."""
    tree = ast.parse(_PATHS[name].read_text())
    said = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _SAID
    }
    counts, style = said["TRUE"], said.get("STYLE", "untouched")
    hidden = said.get("UNSEEN", []), said.get("UNMARKED", [])
    again = [TrueCounts({**counts, **said["AGAIN"]}, *hidden, style)] if "AGAIN" in said else []
    return [TrueCounts(counts, *hidden, style), *again]


_SAID = {"TRUE", "AGAIN", "UNSEEN", "UNMARKED", "STYLE"}


def packages_of(name: str) -> list[str]:
    """The packages that a program and its own modules import at their tops."""
    imports = [node for node in ast.parse(_PATHS[name].read_text()).body if type(node) in _IMPORTS]
    modules = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
               for node in imports]  # fmt: skip
    packages = {(module or "").partition(".")[0] for module in modules}
    for own in packages & set(_PATHS):
        packages.update(packages_of(own))
    return sorted(packages - set(_PATHS) - {MARKS.stem})


_IMPORTS = {ast.Import, ast.ImportFrom}


def start_loop(name: str, style: str, folder: Path) -> Ended:
    """Runs a program once, in one of these styles.

    ``plain``: with a stopwatch, and nobody records it; ``watched``: the same under
    ``otel-mlperf run``; ``untouched``; ``api``; ``advised``: untouched but for the one line that is
    advised where no steps are seen. It keeps its checkpoints in ``folder``; what it leaves lies in
    a folder below, a new one each time.
    """
    starts = len([*folder.glob(f"{style}-*")])
    runs, watch = folder / f"{style}-{starts}", folder / f"{style}-{starts}.json"
    runs.mkdir()
    words = [] if style in ("plain", "api") else ["-m", "otel_mlperf", "run"]
    marks = {"plain": "stopwatch", "watched": "stopwatch", "untouched": ""}.get(style, style)
    done = warm_python.run(
        [sys.executable, *words, _PATHS[name]],
        cwd=folder,
        env=environment(
            runs,
            LOOP_MARKS=marks,
            LOOP_MARKS_FILE=str(watch),
            OTEL_MLPERF_CONSOLE="false",
            PYTHONPATH=str(MARKS.parent),
            HF_HUB_OFFLINE="1",
            DS_ACCELERATOR="cpu",  # else DeepSpeed, once accelerate has found it, prints the time
        ),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr, runs, watch)


class Watched(NamedTuple):
    """What the stopwatch of a program has measured, in nanoseconds."""

    steps_ns: list[int]
    parts: list[tuple[str, int | None, int, int]]
    """Name, step, own time, and that with what was inside."""


def read_watch(ended: Ended) -> Watched:
    """Of a program with a stopwatch that has ended."""
    return Watched(**json.loads(ended.count.read_text()))
