"""The program that an interpreter was started with, and whether it does work of its own."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

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
