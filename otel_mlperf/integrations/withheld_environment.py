"""Commands whose program does not get the environment by which recording starts."""

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
_MOST_SCRIPT: Final = 1 << 16
_PATH: Final = "PYTHONPATH="
_SHELLS: Final = {"sh", "ash", "bash", "dash", "ksh", "zsh"}
_KEYWORDS: Final = {"if", "then", "elif", "else", "do", "while", "until", "!", "{", "}"}


def describe_withheld(command: Sequence[str], path: str) -> str:
    """Return why a program that ``command`` starts is not recorded, and what to do; empty: it is.

    The commands in a shell script are parsed too, as far as they name Python.

    Args:
        command: words of a command line.
        path: the file of its first word. The interpreter that it names counts as well.
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
    # Without a Python only the first word is known to be no argument.
    for at, word in enumerate(words[: python if python < len(words) else 1]):
        options = _CLEARING.get(Path(word).name)
        given = words[at + 1 : python]
        if python == len(words):
            given = list(takewhile(lambda option: option.startswith("-"), given))
        said = [one for one in given if one in (options or ()) or (options and _replaces_path(one))]
        if options == () or said:
            wrapper = " ".join([Path(word).name, *said[:1]])
            here = [sys.executable, "-m", "otel_mlperf"]
            own = ["otel-mlperf"] if Path(word).name in _ELSEWHERE else here
            again = shlex.join([*words[:python], *own, "run", "--", *words[python:]])
            how = f": {again}" if python < len(words) else ", before the program"
            return (
                f"{wrapper} does not pass on environment variables; write otel-mlperf run after "
                f"{wrapper}{how}"
            )
    return ""


def _find_python(words: Sequence[str]) -> int:
    """Return the index of the word that is a Python, ``len(words)`` without one."""
    named = (at for at, word in enumerate(words) if _PYTHON.fullmatch(Path(word).name))
    return next(named, len(words))


def _replaces_path(word: str) -> bool:
    return word.startswith(_PATH) and "$PYTHONPATH" not in word and "${PYTHONPATH" not in word


def _describe_script(words: Sequence[str]) -> str:
    """Return the reason that a shell script contains, with the script's name."""
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
    """Return the commands of a line of a shell script; none if it is only part of a text."""
    parser = shlex.shlex(line, posix=True, punctuation_chars=True)
    parser.whitespace_split = True
    try:
        words = list(parser)
    except ValueError:
        return []
    groups = [list(group) for is_end, group in groupby(words, _ends_command) if not is_end]
    # The shell's own assignments in front of a command are those of ``env``.
    return [["env", *group] if "=" in group[0] else group for group in groups]


def _ends_command(word: str) -> bool:
    return set(word) <= set("();<>|&") or word in _KEYWORDS


def _read_text(file: str) -> str:
    """Return the beginning of a script; empty if it cannot be read."""
    try:
        if not Path(file).is_file():  # a pipe could be read only once
            return ""
        with open(file, "rb") as stream:
            return stream.read(_MOST_SCRIPT).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _interpreter(path: str) -> list[str]:
    """Return the words of a script's shebang line, if it has one."""
    try:
        with open(path, "rb") as file:
            line = file.readline(_MOST_SHEBANG)
    except OSError:
        return []
    return line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
