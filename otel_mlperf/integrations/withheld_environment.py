"""Commands whose program does not get the environment by which recording starts."""

from __future__ import annotations

import re
import shlex
import sys
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*")
_ISOLATED: Final = re.compile(
    r"(?:-(?:[WX]\0?[^\0]*|[a-bd-ln-zA-VY-Z?]+)\0)*-[a-bd-ln-zA-VY-Z?]*?([EIS])"
)
"""Python's options, separated by NUL, up to an isolating one; ``-c`` and ``-m`` end them."""
_CLEARING: Final = {
    "apptainer": ("--cleanenv", "-e"), "bwrap": ("--clearenv",), "doas": (), "docker": (),
    "env": ("-", "-i", "--ignore-environment"), "kubectl": (), "podman": (),
    "runuser": ("-", "-l", "--login"), "singularity": ("--cleanenv", "-e"),
    "srun": ("--export=NONE", "--export=NIL"), "ssh": (), "su": ("-", "-l", "--login"), "sudo": (),
}  # fmt: skip
"""Commands that start other programs without their own environment, by one of these options, or
always. ``sudo -E`` too leaves ``PYTHONPATH`` out (sudoers(5), the environment variables to remove).
"""
_ELSEWHERE: Final = ("docker", "kubectl", "podman", "ssh")
"""Commands for which paths of this machine are meaningless."""
_MOST_SHEBANG: Final = 256


def describe_withheld(command: Sequence[str], path: str) -> str:
    """Return why a program that ``command`` starts is not recorded, and what to do; empty: it is.

    Args:
        command: words of a command line.
        path: the file of its first word. The interpreter that it names counts as well.
    """
    words = [*_interpreter(path), *command]
    named = (at for at, word in enumerate(words) if _PYTHON.fullmatch(Path(word).name))
    python = next(named, len(words))
    if found := _ISOLATED.match("\0".join(words[python + 1 :])):
        return f"Python ignores the environment with -{found[1]}; start it without"
    # Without a Python only the first word is known to be no argument.
    for at, word in enumerate(words[: python if python < len(words) else 1]):
        options = _CLEARING.get(Path(word).name)
        given = words[at + 1 : python]
        if python == len(words):
            given = list(takewhile(lambda option: option.startswith("-"), given))
        said = [option for option in given if option in (options or ())]
        if options == () or said:
            wrapper = " ".join([Path(word).name, *said[:1]])
            here = [sys.executable, "-m", "otel_mlperf"]
            own = ["otel-mlperf"] if Path(word).name in _ELSEWHERE else here
            again = shlex.join([*words[:python], *own, "run", "--", *words[python:]])
            how = f": {again}" if python < len(words) else ", before the program"
            return f"{wrapper} withholds the environment; put otel-mlperf run behind it{how}"
    return ""


def _interpreter(path: str) -> list[str]:
    """Return the words of a script's shebang line, if it has one."""
    try:
        with open(path, "rb") as file:
            line = file.readline(_MOST_SHEBANG)
    except OSError:
        return []
    return line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
