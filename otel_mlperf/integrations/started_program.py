"""What was an interpreter told to run, and does that do work of its own?"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["script", "module", "other"]

_LAUNCHERS: Final = frozenset({
    "accelerate", "deepspeed", "horovodrun", "opentelemetry-instrument", "torchrun",
    "accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner",
    "torch.distributed.launch", "torch.distributed.run",
})  # fmt: skip
_OWN: Final = frozenset({"otel-mlperf", "otel_mlperf"})


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
