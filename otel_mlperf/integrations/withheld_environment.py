"""Detection of commands that withhold the environment variables by which recording starts."""

from __future__ import annotations

import re
import shlex
import sys
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*")
_ISOLATED: Final = re.compile(
    r"(?:-(?:[WX]\0?[^\0]*|[a-bd-ln-zA-VY-Z?]+)\0)*-[a-bd-ln-zA-VY-Z?]*?([EIS])"
)
"""Options of Python, separated by NUL, up to an isolating one; ``-c`` and ``-m`` end them."""
_CLEARING: Final = {
    "apptainer": ("--cleanenv", "-e"), "bwrap": ("--clearenv",), "doas": (), "docker": (),
    "env": ("-", "-i", "--ignore-environment"), "kubectl": (), "podman": (),
    "runuser": ("-", "-l", "--login"), "singularity": ("--cleanenv", "-e"),
    "srun": ("--export=NONE", "--export=NIL"), "ssh": (), "su": ("-", "-l", "--login"), "sudo": (),
}  # fmt: skip
"""Commands that start other programs without their own environment: with one of the listed options,
or always. ``sudo -E`` too removes ``PYTHONPATH`` (sudoers(5), the environment variables to remove).
"""
_ELSEWHERE: Final = ("docker", "kubectl", "podman", "ssh")
"""Commands that run programs on another machine or in a container: local paths are invalid."""
_MAX_SHEBANG: Final = 256
_MAX_SCRIPT: Final = 1 << 16
_PATH: Final = "PYTHONPATH="
_SHELLS: Final = {"sh", "ash", "bash", "dash", "ksh", "zsh"}
_KEYWORDS: Final = {"if", "then", "elif", "else", "do", "while", "until", "!", "{", "}"}


def describe_withheld(command: Sequence[str], path: str) -> str:
    """Return why recording cannot start under ``command``, and what to do; empty if it can start.

    If ``command`` runs a shell script, the commands in the script that name Python are checked as
    well.

    Args:
        command: words of a command line.
        path: the file of the first word; the interpreter in its shebang line is checked as well.
    """
    words = [*_interpreter(path), *command]
    return _describe(words) or _describe_script(words)


def _describe(words: Sequence[str]) -> str:
    python = _find_python(words)
    if found := _ISOLATED.match("\0".join(words[python + 1 :])):
        return (
            f"Python ignores environment variables with -{found[1]}; start Python without this "
            "option"
        )
    # If no word names Python, only the first word is certainly not an argument.
    for at, word in enumerate(words[: python if python < len(words) else 1]):
        options = _CLEARING.get(Path(word).name)
        given = words[at + 1 : python]
        if python == len(words):
            given = list(takewhile(lambda option: option.startswith("-"), given))
        used = [one for one in given if one in (options or ()) or (options and _replaces_path(one))]
        if options == () or used:
            wrapper = " ".join([Path(word).name, *used[:1]])
            this_python = [sys.executable, "-m", "otel_mlperf"]
            own = ["otel-mlperf"] if Path(word).name in _ELSEWHERE else this_python
            again = shlex.join([*words[:python], *own, "run", "--", *words[python:]])
            how = f": {again}" if python < len(words) else ", before the program"
            return (
                f"{wrapper} does not pass on environment variables; write otel-mlperf run after "
                f"{wrapper}{how}"
            )
    return ""


def _find_python(words: Sequence[str]) -> int:
    """Return the index of the word that names a Python interpreter; ``len(words)`` if none does."""
    named = (at for at, word in enumerate(words) if _PYTHON.fullmatch(Path(word).name))
    return next(named, len(words))


def _replaces_path(word: str) -> bool:
    return word.startswith(_PATH) and "$PYTHONPATH" not in word and "${PYTHONPATH" not in word


def _describe_script(words: Sequence[str]) -> str:
    """Return a shell script's name and the reason found in it; empty if there is no reason."""
    shell = next((at for at, word in enumerate(words) if Path(word).name in _SHELLS), len(words))
    script = next((word for word in words[shell + 1 :] if not word.startswith("-")), "")
    is_text = "-c" in words[shell + 1 : shell + 2]
    text = script if is_text else _read_text(script)
    replaced = ""
    for line in text.replace("\\\n", " ").splitlines():
        for command in _simple_commands(line):
            has_python = _find_python(command) < len(command)
            if has_python and (reason := _describe(command) or replaced):
                return f"{f'{words[shell]} -c' if is_text else script}: {reason}"
            if not has_python and _replaces_path(command[-1]):
                own = " ".join(word for word in command if word != "env")
                replaced = (
                    f"{own} removes the folder that starts the recording; write "
                    f"{command[-1]}:$PYTHONPATH"
                )
    return ""


def _simple_commands(line: str) -> list[list[str]]:
    """Return the commands in a line of a shell script; empty if the line has unbalanced quotes."""
    parser = shlex.shlex(line, posix=True, punctuation_chars=True)
    parser.whitespace_split = True
    try:
        words = list(parser)
    except ValueError:
        return []
    groups = [list(group) for is_end, group in groupby(words, _ends_command) if not is_end]
    # ``NAME=value command`` in a shell is equivalent to ``env NAME=value command``.
    return [["env", *group] if "=" in group[0] else group for group in groups]


def _ends_command(word: str) -> bool:
    return set(word) <= set("();<>|&") or word in _KEYWORDS


def _read_text(file: str) -> str:
    try:
        if not Path(file).is_file():  # a pipe could be read only once
            return ""
        with open(file, "rb") as stream:
            return stream.read(_MAX_SCRIPT).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _interpreter(path: str) -> list[str]:
    """Return the words of a script's shebang line; empty if the file has no such line."""
    try:
        with open(path, "rb") as file:
            line = file.readline(_MAX_SHEBANG)
    except OSError:
        return []
    return line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
