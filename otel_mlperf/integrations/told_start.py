"""The start request: what a process that is to record receives, and its environment variables.

The request consists of one variable, and one folder at the front of ``PYTHONPATH`` whose
``sitecustomize`` reads it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

VARIABLE = "OTEL_MLPERF_AUTOSTART"
_MOST_CHARACTERS = 8192
FOLDER = str(Path(__file__).parent / "bootstrap")


class Autostart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Start request for a program to record, as JSON in one environment variable."""

    scope: Literal["this", "programs", "ranks", "group"]
    """``this``: the next program; ``programs``: it and those that launchers start; ``ranks``: of
    those only the ranks; ``group``: processes that join a process group.
    """
    name: str | None = None
    """Name of the run (default: the program's own)."""
    python_path: str | None = None
    """``PYTHONPATH`` before the change, None if it was not set."""
    run_id: str = ""
    """Run id of the rank, if a rank of that run starts it."""
    restart: int = 0
    """Restart count of that run."""
    ranks_here: int = 1
    """Number of ranks of that run on a node."""
    pid: int = 0
    """Pid of the process that became the program, through any number of intermediate programs."""
    delegated: tuple[str, ...] = ()
    """Command line of the program that started this one: a program named there is its work."""
    behind: str = ""
    """The run folder of the program that starts this one, or that this one has replaced."""

    def put(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with which the program has to be started."""
        paths = [FOLDER] if not self.python_path else [FOLDER, self.python_path]
        return {**environ, VARIABLE: self.as_text(), "PYTHONPATH": os.pathsep.join(paths)}

    def as_text(self) -> str:
        """Return the value of the variable."""
        return msgspec.json.encode(self).decode()

    def take_away(self, environ: MutableMapping[str, str]) -> None:
        """Restore the environment as it was before ``put``."""
        environ.pop(VARIABLE, None)
        if self.python_path is None:
            environ.pop("PYTHONPATH", None)
        else:
            environ["PYTHONPATH"] = self.python_path


def short_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line, or none if there are too many for a variable."""
    return tuple(words) if sum(map(len, words)) <= _MOST_CHARACTERS else ()


def read_autostart(environ: Mapping[str, str]) -> Autostart | None:
    """Return the start request of this process; None if there is none that can be read."""
    try:
        return msgspec.json.decode(environ.get(VARIABLE, ""), type=Autostart)
    except msgspec.MsgspecError:
        return None
