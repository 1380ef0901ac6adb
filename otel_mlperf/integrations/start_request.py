"""Start request that a process to record receives, and detection of the process's program.

The request consists of one environment variable, and one folder at the front of ``PYTHONPATH``
whose ``sitecustomize`` reads the variable.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

VARIABLE = "OTEL_MLPERF_AUTOSTART"
_MAX_CHARACTERS = 8192
FOLDER = str(Path(__file__).parent / "bootstrap")


class Autostart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Start request for a program to record, as JSON in one environment variable."""

    scope: Literal["this", "programs", "ranks", "group"]
    """``this``: only the next program; ``programs``: also programs that launchers start; ``ranks``:
    only ranks among the started programs; ``group``: processes that join a process group.
    """
    name: str | None = None
    """Name of the run (default: the program's name)."""
    python_path: str | None = None
    """``PYTHONPATH`` before the change, None if it was not set."""
    run_id: str = ""
    """Run id, if a rank of that run starts the process; otherwise empty."""
    restart: int = 0
    """Restart count of that run."""
    ranks_per_node: int = 1
    """Number of ranks of that run per node."""
    pid: int = 0
    """Pid of the process that made the request and then became the program by ``exec``, possibly
    through intermediate programs.
    """
    delegated: tuple[str, ...] = ()
    """Arguments of the program that starts this one; a program named there is recorded."""
    behind: str = ""
    """Run folder of the program that starts this one, or that this one has replaced."""

    def put(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``environ`` with the request added, for the program to start."""
        paths = [FOLDER] if not self.python_path else [FOLDER, self.python_path]
        return {**environ, VARIABLE: self.as_text(), "PYTHONPATH": os.pathsep.join(paths)}

    def as_text(self) -> str:
        """Return the value of the environment variable."""
        return msgspec.json.encode(self).decode()

    def remove_from(self, environ: MutableMapping[str, str]) -> None:
        """Restore ``environ`` to its content before ``put``."""
        environ.pop(VARIABLE, None)
        if self.python_path is None:
            environ.pop("PYTHONPATH", None)
        else:
            environ["PYTHONPATH"] = self.python_path


def short_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return ``words``, or an empty tuple if they have more than 8192 characters in total."""
    return tuple(words) if sum(map(len, words)) <= _MAX_CHARACTERS else ()


def read_autostart(environ: Mapping[str, str]) -> Autostart | None:
    """Return the start request of this process; None if it is missing or invalid."""
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
"""Start of the ``-c`` code with which ``multiprocessing`` starts workers, servers and trackers."""


class Program(NamedTuple):
    """Program that an interpreter runs."""

    kind: Kind
    """``input``: a script on standard input; ``text``: code after ``-c``; ``other``: a prompt, or a
    worker of ``multiprocessing``, which belongs to its parent.
    """
    target: str
    """Path of the script, name of the module, or the ``-c`` code."""

    @property
    def name(self) -> str:
        """Default name of the program's runs: the script's stem, or the module's last component."""
        if self.kind in {"input", "text"}:
            return "stdin" if self.kind == "input" else "run"
        if self.kind == "module":
            return self.target.removesuffix(".__main__").rpartition(".")[2]
        path = PurePath(self.target)
        return path.parent.name or "run" if path.stem == "__main__" else path.stem

    @property
    def is_recorded(self) -> bool:
        """Whether the program does work of its own: neither a launcher nor ``-c`` code.

        Launchers only start the programs that do the work. Shell scripts mostly use ``-c`` code to
        compute a single value.
        """
        known_by = self.target if self.kind == "module" else PurePath(self.target).name
        return self.kind not in {"other", "text"} and known_by not in _LAUNCHERS | _OWN

    def is_named_in(self, words: Sequence[str]) -> bool:
        """Return whether one of the words of a command line names this program."""
        if self.kind == "other":
            return False
        if self.kind != "script":
            return self.target in words
        return PurePath(self.target).name in {PurePath(word).name for word in words}


def is_terminal() -> bool:
    """Return whether standard input is a terminal."""
    try:
        return os.isatty(0)
    except OSError:
        return False


def detect_program(
    argv: Sequence[str], original: Sequence[str], *, is_prompt: bool = True
) -> Program:
    """Return the program, from ``sys.argv`` and ``sys.orig_argv`` at interpreter start.

    ``is_prompt``: whether Python without an argument shows a prompt; otherwise it reads a script
    from standard input.
    """
    first = argv[0] if argv else ""
    if first == "-m":
        # The module's name precedes its arguments, as a separate word or joined to the option:
        # -mNAME.
        word = original[-len(argv)]
        return Program("module", word.partition("m")[2] if word.startswith("-") else word)
    if first == "-c":
        text = original[-len(argv)]
        return Program("other" if text.lstrip().startswith(_WORKER) else "text", text)
    if first in {"", "-"}:
        return Program("other" if is_prompt and not first else "input", first)
    return Program("script", first)
