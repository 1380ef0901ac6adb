"""How does recording begin in a program that does not ask for it?

``otel-mlperf run`` replaces itself by plain ``python``, so that everything is as under ``python``
because it is ``python``: ``__main__``, arguments, paths, pickling, workers, exit codes, tracebacks.
One variable and one folder at the front of ``PYTHONPATH`` bring ``sitecustomize`` of ours to run
first; it starts the run, switches the integrations on, and takes both away again. Launchers keep
them, for the programs that they start. Which program it is is told from the command line alone,
before any of its code has run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

VARIABLE = "OTEL_MLPERF_AUTOSTART"
FOLDER = str(Path(__file__).parent / "bootstrap")
Kind = Literal["script", "module", "other"]

_LAUNCHERS = frozenset({
    "accelerate", "deepspeed", "horovodrun", "opentelemetry-instrument", "torchrun",
    "accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner",
    "torch.distributed.launch", "torch.distributed.run",
})  # fmt: skip
_OWN = frozenset({"otel-mlperf", "otel_mlperf"})


class Autostart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a program that is to be recorded is told, as JSON in one environment variable."""

    scope: Literal["this", "programs", "ranks"]
    """The next program; it and those that launchers start; of those only the ranks."""
    name: str | None = None
    """The run's name; the program's own by default."""
    python_path: str | None = None
    """``PYTHONPATH`` as it was, None where there was none."""

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


def read_autostart(environ: Mapping[str, str]) -> Autostart | None:
    """What this process was told; None where nothing was, or nothing that can be read."""
    try:
        return msgspec.json.decode(environ.get(VARIABLE, ""), type=Autostart)
    except msgspec.MsgspecError:
        return None


class Program(NamedTuple):
    """What an interpreter was told to run."""

    kind: Kind
    """``other``: a command given as text, standard input, or a prompt."""
    target: str
    """The script's path or the module's name."""

    @property
    def name(self) -> str:
        """What a run of it is called: the script's stem, the module's last word."""
        if self.kind == "module":
            return self.target.removesuffix(".__main__").rpartition(".")[2]
        path = PurePath(self.target)
        return path.parent.name or "run" if path.stem == "__main__" else path.stem

    @property
    def is_recorded(self) -> bool:
        """Whether it does work of its own: launchers only start those that do.

        Workers of ``multiprocessing`` are commands given as text and belong to their parent.
        """
        known_by = self.target if self.kind == "module" else PurePath(self.target).name
        return self.kind != "other" and known_by not in _LAUNCHERS | _OWN


def detect_program(argv: Sequence[str], original: Sequence[str]) -> Program:
    """The program, from ``sys.argv`` and ``sys.orig_argv`` as they are at interpreter start."""
    first = argv[0] if argv else ""
    if first == "-m":
        # The module's name stands before its arguments, alone or behind its option: -mname.
        word = original[-len(argv)]
        return Program("module", word.partition("m")[2] if word.startswith("-") else word)
    if first in {"", "-", "-c"}:
        return Program("other", first)
    return Program("script", first)


def begin() -> None:
    """Starts the run that this process was told to record, if its program is one to record."""
    told = read_autostart(os.environ)
    if told is None:
        return
    program = detect_program(sys.argv, sys.orig_argv)
    is_rank = "RANK" in os.environ
    # Before the run begins: what is started from here on, the agent first, sees the environment
    # that the program has without us.
    if told.scope == "this" or (program.is_recorded and is_rank):
        told.take_away(os.environ)
    elif program.is_recorded and told.scope == "programs":
        # It may start ranks of its own, which record themselves; its other children do not.
        for_ranks = msgspec.structs.replace(told, scope="ranks")
        os.environ.update(for_ranks.put({}))
    if program.is_recorded and (is_rank or told.scope != "ranks"):
        record(told.name or program.name)


def record(name: str) -> None:
    """Begins a run on behalf of this process, under whose own ``start()`` it goes on."""
    import otel_mlperf
    from otel_mlperf.integrations.switch import give_way, integrate_all

    # The run comes first: what goes wrong with an integration is counted in its journal.
    otel_mlperf.start(name).lend(give_way)
    integrate_all()
