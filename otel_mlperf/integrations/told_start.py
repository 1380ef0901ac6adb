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
    """What a program that is to be recorded is told, as JSON in one environment variable."""

    scope: Literal["this", "programs", "ranks", "group"]
    """The next program; it and those that launchers start; of those only the ranks; whoever joins
    a process group."""
    name: str | None = None
    """The run's name; the program's own by default."""
    python_path: str | None = None
    """``PYTHONPATH`` as it was, None where there was none."""
    run_id: str = ""
    """Of the run that it is a rank of, if a rank of that run starts it."""
    restart: int = 0
    """Of that run."""
    ranks_here: int = 1
    """How many ranks of that run there are on a node."""
    pid: int = 0
    """Of the process that became the program, through as many others as there were before it."""
    delegated: tuple[str, ...] = ()
    """Words of the command line that started this one: a program named there is its work."""
    behind: str = ""
    """The run folder of the program that starts this one, or that this one has replaced."""

    def put(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment with which the program has to be started."""
        paths = [FOLDER] if not self.python_path else [FOLDER, self.python_path]
        return {**environ, VARIABLE: self.as_text(), "PYTHONPATH": os.pathsep.join(paths)}

    def as_text(self) -> str:
        """The value of the variable."""
        return msgspec.json.encode(self).decode()

    def take_away(self, environ: MutableMapping[str, str]) -> None:
        """Leaves the environment as it was before ``put``."""
        environ.pop(VARIABLE, None)
        if self.python_path is None:
            environ.pop("PYTHONPATH", None)
        else:
            environ["PYTHONPATH"] = self.python_path


def short_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line, or none if there are too many for a variable."""
    return tuple(words) if sum(map(len, words)) <= _MOST_CHARACTERS else ()


def read_autostart(environ: Mapping[str, str]) -> Autostart | None:
    """What this process was told; None where nothing was, or nothing that can be read."""
    try:
        return msgspec.json.decode(environ.get(VARIABLE, ""), type=Autostart)
    except msgspec.MsgspecError:
        return None
