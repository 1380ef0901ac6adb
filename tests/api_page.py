"""Generator of ``docs/api.md`` from signatures, docstrings and the help of commands.

``python tests/api_page.py`` rewrites the page.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
import typing
from itertools import groupby
from pathlib import Path

import typer
from pages import DOCS

import otel_mlperf as om
from otel_mlperf import errors
from otel_mlperf.cli import commands
from otel_mlperf.cli import run as run_command
from otel_mlperf.recorder.api.block import Block

PAGE = DOCS / "api.md"
WIDTH = 100

HEAD = """\
# Public calls and commands

Look up the signature of every public call and the options of every command. All calls are reached
through `import otel_mlperf as om`; other names of the package may change. Calls that set up a run
may raise, as described; recording never raises. See also [settings](configuration.md),
[metrics](metrics.md), the fields of [`readings()`](readings.md) and the [glossary](GLOSSARY.md).
(Generated from signatures, docstrings and the commands' help.)
"""

GROUPS = {
    "A run": ["start", "stop", "Run", "Config", "integrate"],
    "Steps": ["steps", "step", "mark_step", "epochs", "epoch", "phase"],
    "Sections": ["span", "timed", "request", "Span", "watch_files", "log_ids"],
    "Numbers": ["log", "counter", "gauge", "histogram"],
    "Devices": ["torch_profile", "trace_handler", "cuda_memory", "memory_snapshot"],
    "Work": ["model_work", "find_batch_size"],
    "Reading back": [
        "read_run",
        "StoredRun",
        "RunTable",
        "Stats",
        "SectionStats",
        "memory",
        "Memory",
        "memory_point",
        "MemoryPoint",
        "memory_growth",
        "MemoryGrowth",
        "GrowthRow",
        "readings",
        "Readings",
    ],
    "Callbacks": [
        "on_step_begin",
        "on_step_end",
        "on_phase",
        "on_warning",
        "RunWarning",
        "remove_callback",
    ],
    "Errors": ["OtelMlperfError", "ConfigError", "RunActive", "JournalError"],
}
"""Each public name once, in the order of the page."""

METHODS = {
    "Run": ["id", "path", "is_active", "step", "result", "stats", "hot", "mark", "summary", "stop"],
    "StoredRun": [
        "steps",
        "sections",
        "readings",
        "values",
        "marks",
        "kernels",
        "table",
    ],
    "RunTable": ["columns", "to_arrow", "to_pandas", "to_polars", "to_duckdb"],
    "span": ["set"],
    "counter": ["add", "labels"],
    "gauge": ["set", "labels"],
    "histogram": ["record", "labels"],
    "torch_profile": ["start", "stop", "paths"],
    "model_work": ["count"],
    "find_batch_size": ["largest", "best", "as_good"],
    "watch_files": ["stop"],
}
"""Public methods and properties of a class, or of the result of a call."""


def known_to(call, kind):
    """Return a class by its name in the module of a call."""
    return vars(sys.modules[call.__module__])[kind]


KINDS = {
    "span": Block,
    "counter": known_to(om.counter, "Counter"),
    "gauge": known_to(om.gauge, "Gauge"),
    "histogram": known_to(om.histogram, "Histogram"),
    "torch_profile": known_to(om.torch_profile, "Profiling"),
    "model_work": known_to(om.model_work, "ModelWork"),
    "find_batch_size": known_to(om.find_batch_size, "BatchSizes"),
    "watch_files": known_to(om.watch_files, "FileWatch"),
}
"""Type of the result of each call whose methods are listed."""


def render():
    """Return the whole page."""
    parts = [HEAD]
    for title, names in GROUPS.items():
        parts.append(f"\n## {title}\n")
        parts += [told(name) for name in names]
        if title == "Errors":
            parts.append(tree_of_errors())
    parts.append("\n## Commands\n\n" + paragraphs(commands._about))
    parts += [command(name) for name in command_names()]
    return "".join(parts)


def told(name):
    """Return the entry of a public name: signature, docstring, and methods of the result."""
    title, thing = f"\n### `{name}`\n\n", getattr(om, name)
    if name == "Config":
        return f"{title}All settings of a run: see [Settings](configuration.md).\n"
    shape = "" if inspect.isclass(thing) else fenced("python", signature(name, thing)) + "\n"
    return title + shape + docstring(thing) + methods(name, thing)


def methods(name, thing):
    """Return the public methods and properties as a list."""
    owner = KINDS.get(name, thing)
    of = "" if inspect.isclass(thing) else " of the result"
    lines = []
    for member in METHODS.get(name, ()):
        value = inspect.getattr_static(owner, member)
        what = plain(" ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split()))
        lines.append(wrapped(f"`.{member}{short(value)}`: {what}", "- "))
    return "".join([f"\nMethods and properties{of}:\n\n", *lines]) if lines else ""


def short(value):
    """Return a method's parameters without types; empty for a property."""
    if not inspect.isfunction(value):
        return ""
    parameters = list(inspect.signature(value).parameters.values())[1:]
    bare = [item.replace(annotation=item.empty) for item in parameters]
    return str(inspect.Signature(bare))


def signature(name, thing):
    """Return ``name(...)`` on one line, or one parameter per line if it is too long."""
    # The last overload has the most parameters.
    shape = inspect.signature([thing, *typing.get_overloads(thing)][-1])
    quoted = [item.replace(annotation=Bare(item.annotation)) for item in shape.parameters.values()]
    result = Bare(shape.return_annotation)
    whole = f"{name}{inspect.Signature(quoted, return_annotation=result)}"
    if len(whole) <= WIDTH:
        return whole
    lines = [f"    {item},\n" for item in separated(quoted)]
    return f"{name}(\n{''.join(lines)}) -> {result!r}"


class Bare:
    """An annotation as written in the source, without quotes."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return str(self.text)


def separated(parameters):
    """Return the parameters as text, with ``/`` and ``*`` between their kinds."""
    texts = []
    by_kind = [(kind, list(them)) for kind, them in groupby(parameters, lambda item: item.kind)]
    for kind, them in by_kind:
        if kind is inspect.Parameter.KEYWORD_ONLY and not texts_end_in_star(texts):
            texts.append("*")
        texts += [str(item) for item in them]
        if kind is inspect.Parameter.POSITIONAL_ONLY:
            texts.append("/")
    return texts


def texts_end_in_star(texts):
    """Return whether ``*args`` already separates positional from keyword parameters."""
    return any(text.startswith("*") and not text.startswith("**") for text in texts)


def docstring(thing):
    """Return a docstring as Markdown: examples fenced, arguments and errors as lists."""
    text = inspect.getdoc(thing) or ""
    parts = []
    for kind, block in blocks(text):
        if kind == "example":
            parts.append(fenced("python", block))
        elif kind == "Args":
            parts.append("".join(wrapped(plain(line), "- ") for line in items(block)))
        elif kind == "Raises":
            parts.append("".join(wrapped("raises " + plain(line), "- ") for line in items(block)))
        else:
            parts.append(paragraph(block))
    return "\n".join(parts)


def paragraph(text):
    """Return a paragraph of a docstring as Markdown."""
    return textwrap.fill(
        plain(" ".join(text.split())), WIDTH, break_long_words=False, break_on_hyphens=False
    ) + "\n"  # fmt: skip


def blocks(text):
    """Yield the paragraphs of a docstring with their kinds: text, example, Args or Raises."""
    is_example = False
    for block in text.split("\n\n"):
        head, _, rest = block.partition("\n")
        is_example = block == "::" or (is_example and block.startswith(" "))
        if block == "::":
            continue
        if head in {"Args:", "Raises:"}:
            yield head[:-1], textwrap.dedent(rest)
        else:
            yield ("example", textwrap.dedent(block)) if is_example else ("text", block)


def items(block):
    """Return the ``name: meaning`` items, each with its continuation lines joined."""
    found = []
    for line in block.splitlines():
        if line.startswith(" ") and found:
            found[-1] += " " + line.strip()
        else:
            name, _, meaning = line.partition(": ")
            found.append(f"`{name}`: {meaning}")
    return found


def tree_of_errors():
    """Return the table of all errors with their exit codes."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, om.OtelMlperfError)
    ]
    rows = [f"| `{kind.__name__}` | {kind.exit_code} | {plain(kind.__doc__)} |" for kind in kinds]
    head = (
        "\nAll errors, with the exit code of the command line. Commands and `read_run()` also\n"
        "raise errors that are not attributes of `om`.\n"
    )
    return "\n".join([head, "| error | exit code | meaning |", "|---|---:|---|", *rows]) + "\n"


def command_names():
    """Return the names of all commands, in the order of ``--help``."""
    return [*commands._COMMANDS]


def command(name):
    """Return the entry of a command: usage, description and options."""
    title = f"\n### `{commands.NAME} {name}`\n\n"
    if name == commands._RUN:
        return title + fenced("", run_command.USAGE.rstrip())
    word = "import_" if name == "import" else name
    function = getattr(importlib.import_module(f"otel_mlperf.cli.{word}"), word)
    parsed = typer.main.get_command(as_app(name, function))
    shown = [item for item in parsed.params if not getattr(item, "hidden", False)]
    places = [item for item in shown if item.param_type_name == "argument"]
    options = [item for item in shown if item.param_type_name == "option"]
    usage = " ".join(
        [commands.NAME, name, *map(placed, places), *(["[OPTIONS]"] if options else [])]
    )
    listed = [wrapped(f"`{item.metavar or item.name.upper()}`: {help_of(item)}", "- ")
              for item in places if help_of(item)]  # fmt: skip
    kinds = typing.get_type_hints(function)
    listed += [
        wrapped(f"`{option(item, kinds[item.name])}`: {help_of(item)}", "- ") for item in options
    ]
    about = paragraphs(function) + ("\n" if listed else "")
    return "".join([title, fenced("", usage), "\n", about, *listed])


def paragraphs(function):
    """Return the paragraphs of a command's docstring."""
    return "\n".join(map(paragraph, (inspect.getdoc(function) or "").split("\n\n")))


def as_app(name, function):
    """Return an application with only this command."""
    app = typer.Typer(add_completion=False)
    app.command(name)(function)
    return app


def placed(item):
    """Return an argument as in a usage line."""
    shown = item.metavar or item.name.upper()
    shown = shown.strip("[].")
    many = "..." if item.nargs == -1 else ""
    return f"{shown}{many}" if item.required else f"[{shown}{many}]"


VALUES = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
"""Placeholder of an option's value, by type."""


def option(item, kind):
    """Return the names of an option and the placeholder of its value."""
    names = ", ".join([*item.opts, *item.secondary_opts])
    (inner, *_) = [part for part in typing.get_args(kind) if part is not type(None)] or [kind]
    (inner, *_) = [*typing.get_args(inner), inner]
    return names if inner is bool else f"{names} {item.metavar or VALUES[inner]}"


def help_of(item):
    """Return the help of an argument or option, with its default."""
    text = plain(item.help or "")
    default = item.default
    is_told = isinstance(default, (int, float, str)) and not isinstance(default, bool) and default
    return f"{text} Default: `{default}`." if is_told else text


def plain(text):
    """Return the text of a docstring as Markdown."""
    return text.replace("``", "`").strip()


def wrapped(text, bullet):
    """Return an item of a list."""
    return textwrap.fill(
        text, WIDTH, initial_indent=bullet, subsequent_indent=" " * len(bullet),
        break_long_words=False, break_on_hyphens=False,
    ) + "\n"  # fmt: skip


def fenced(language, text):
    """Return a block of code."""
    return f"```{language}\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(render())
