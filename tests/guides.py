"""Commands and quoted messages in the pages for users."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from typing import TYPE_CHECKING

import typer
from pages import DOCS, ROOT

from otel_mlperf.cli.commands import _COMMANDS, _RUN, _Lazy
from otel_mlperf.cli.run import _VALUES

if TYPE_CHECKING:
    from collections.abc import Iterable

GUIDES = [
    *(DOCS / f"{name}.md" for name in (
        "tutorial", "own-script", "frameworks", "notebooks", "slurm", "kubernetes",
        "troubleshooting", "questions", "comparing", "data-loading", "report",
    )),
    *sorted((DOCS / "frameworks").glob("*.md")),
]  # fmt: skip
"""The pages for those who use it."""
PLACEHOLDER = "…"
_PARTS = re.compile(f"{PLACEHOLDER}|; ")
_BETWEEN = " ;:,."
"""What may stand between texts that a message is put together of."""
_COMMAND = re.compile(r"otel-mlperf(?: |$)")
_QUOTED = re.compile(r"^### `([^`]+)`$", re.MULTILINE)
_INLINE = re.compile(r"`(otel-mlperf [^`]+)`")
_LOGGED = re.compile(r"%(?:\.\d+)?[sdr]|\{[^{}]*\}")


def blocks(text: str, language: str) -> list[str]:
    """The blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """Each call of ours that a page names, as words behind ``otel-mlperf``."""
    lines = [
        line.partition("otel-mlperf ")[2]
        for block in blocks(text, "sh")
        for line in block.replace("\\\n", " ").splitlines()
        if _COMMAND.search(line)
    ]
    lines += [named.partition(" ")[2] for named in _INLINE.findall(text)]
    return [shlex.split(line, comments=True) for line in lines]


def unknown(words: list[str]) -> list[str]:
    """What of a call of ours is no command or option."""
    name, *rest = words
    if name == _RUN:
        return [word for word in own_words(rest) if word.partition("=")[0] not in _VALUES]
    if name not in _COMMANDS:
        return [name]
    given = [word.partition("=")[0] for word in rest if word.startswith("-")]
    return [word for word in given if word not in options(name)]


def own_words(rest: list[str]) -> Iterable[str]:
    """The options of ``run``, up to the program or the ``--`` before it."""
    waiting = iter(rest)
    for word in waiting:
        if word == "--" or not word.startswith("--"):
            return
        yield word
        if "=" not in word:
            next(waiting, None)


@cache
def options(command: str) -> set[str]:
    """The options that a command has."""
    app = typer.Typer(cls=_Lazy)
    app.callback()(lambda: None)
    found = typer.main.get_command(app).get_command(None, command)
    return {"--help", *(option for param in found.params for option in param.opts)}


def quoted(text: str) -> list[str]:
    """The messages that a page quotes in its headings."""
    return _QUOTED.findall(text)


@cache
def messages() -> list[str]:
    """The texts of the package and of its commands, what differs in them as a placeholder."""
    found = []
    for path in (ROOT / "otel_mlperf").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(joined(node))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(_LOGGED.sub(PLACEHOLDER, node.value))
    return found


def joined(node: ast.JoinedStr) -> str:
    """An f-string with placeholders."""
    return "".join(
        part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values
    )


def is_said(message: str) -> bool:
    """Whether each part of a quoted message stands in a text of the code.

    A part is what lies between two placeholders or semicolons: a message may be put together of
    several texts.
    """
    return all(
        any(part in text for text in messages())
        for part in (piece.strip(_BETWEEN) for piece in _PARTS.split(message))
        if len(part) > 1
    )
