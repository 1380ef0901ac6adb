"""The start request that a process to record receives, and the program that it was started with.

The request consists of one variable, and one folder at the front of ``PYTHONPATH`` whose
``sitecustomize`` reads it.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

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


Kind = Literal["script", "module", "input", "text", "other"]

_LAUNCHERS: Final = frozenset({
    "accelerate", "deepspeed", "horovodrun", "opentelemetry-instrument", "torchrun",
    "accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner",
    "torch.distributed.launch", "torch.distributed.run",
})  # fmt: skip
_OWN: Final = frozenset({"otel-mlperf", "otel_mlperf"})
_WORKER: Final = "from multiprocessing"
"""Start of the text by which ``multiprocessing`` starts workers, servers and trackers."""


class Program(NamedTuple):
    """The program that an interpreter was started with."""

    kind: Kind
    """``input``: a script on standard input; ``text``: one behind ``-c``; ``other``: a prompt, or a
    worker of ``multiprocessing``, which belongs to its parent."""
    target: str
    """The script's path, the module's name, or the text."""

    @property
    def name(self) -> str:
        """Name of its runs: the script's stem, or the module's last component."""
        if self.kind in {"input", "text"}:
            return "stdin" if self.kind == "input" else "run"
        if self.kind == "module":
            return self.target.removesuffix(".__main__").rpartition(".")[2]
        path = PurePath(self.target)
        return path.parent.name or "run" if path.stem == "__main__" else path.stem

    @property
    def is_recorded(self) -> bool:
        """Whether it does work of its own: launchers only start programs that do.

        Nor do texts as a rule: shell scripts use them to compute one value.
        """
        known_by = self.target if self.kind == "module" else PurePath(self.target).name
        return self.kind not in {"other", "text"} and known_by not in _LAUNCHERS | _OWN

    def is_named_in(self, words: Sequence[str]) -> bool:
        """Return whether one of the words of a command line is this program."""
        if self.kind == "other":
            return False
        if self.kind != "script":
            return self.target in words
        return PurePath(self.target).name in {PurePath(word).name for word in words}


def is_typed() -> bool:
    """Return whether a person types what Python reads from standard input."""
    try:
        return os.isatty(0)
    except OSError:
        return False


def detect_program(
    argv: Sequence[str], original: Sequence[str], *, is_prompt: bool = True
) -> Program:
    """Return the program, from ``sys.argv`` and ``sys.orig_argv`` at interpreter start.

    ``is_prompt``: Python without an argument shows a prompt, instead of reading a script.
    """
    first = argv[0] if argv else ""
    if first == "-m":
        # The module's name precedes its arguments, alone or behind its option: -mname.
        word = original[-len(argv)]
        return Program("module", word.partition("m")[2] if word.startswith("-") else word)
    if first == "-c":
        text = original[-len(argv)]
        return Program("other" if text.lstrip().startswith(_WORKER) else "text", text)
    if first in {"", "-"}:
        return Program("other" if is_prompt and not first else "input", first)
    return Program("script", first)
