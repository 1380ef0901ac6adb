"""Runner of the programs of a page, which compares their output with the page.

A block of Python whose first line is ``# file: NAME`` is a file; so is an example that the page
names. A block of shell that an unnamed block follows is a command, the unnamed block the summary of
its run. ``python tests/page_programs.py PAGE…`` runs them and writes the summaries anew.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import warm_python
from pages import DOCS, ROOT
from runs import LIMIT_S, Ended, environment

FRAMEWORKS = DOCS / "frameworks"
_FILE = re.compile(r"^```python\n(# file: (\S+)\n.*?)^```$", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"\bexamples/\w+\.py")
_SHOWN = re.compile(r"^```sh\n([^`]*?)^```\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^  (\S.*?)  +(?:[\d.,]+  |in )", re.MULTILINE)
_EXPLAINED = re.compile(r"^\| (`[^|]*`) \|", re.MULTILINE)
_HEAD = re.compile(r" · (finished · \d+ ranks?, \d+ nodes?) · ")
_STEPS = re.compile(r"^(\d+) steps · ", re.MULTILINE)
_NOT_ALWAYS = {"garbage collection"}
"""Rows that depend on the moment."""


class Shown(NamedTuple):
    """A command of a page, and the summary that is shown below it."""

    command: str
    summary: str


def files(text: str) -> dict[str, str]:
    """The files of a page, by name, and the examples that it mentions."""
    examples = {name: (ROOT / name).read_text() for name in _EXAMPLE.findall(text)}
    return examples | {name: content for content, name in _FILE.findall(text)}


def shown(text: str) -> list[Shown]:
    """The commands of a page whose summaries it shows."""
    return [Shown(*found) for found in _SHOWN.findall(text)]


def rows(summary: str) -> set[str]:
    """The names in the table of a summary."""
    return set(_ROW.findall(summary))


def explained(text: str) -> set[str]:
    """The names that the first columns of a page's tables explain."""
    return {
        name for cell in _EXPLAINED.findall(text) for name in re.findall(r"`([^`]+)`", cell)
    }  # fmt: skip


def told(summary: str) -> dict[str, object]:
    """What a summary says that is the same each time: outcome, ranks, steps, rows, losses."""
    head, steps = _HEAD.search(summary), _STEPS.search(summary)
    return {
        "head": head and head[1],
        "steps": steps and int(steps[1]),
        "rows": rows(summary) - _NOT_ALWAYS,
        "0 lost": "telemetry 0 records lost" in summary,
    }


def run(files: dict[str, str], command: str, folder: Path, **variables: str) -> str:
    """Runs a command beside the files of its page; the summary of the run that it left.

    Files that begin with ``#!`` are commands.
    """
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
        (folder / name).chmod(0o755 if content.startswith("#!") else 0o644)
    (warm := folder / "warm").mkdir()
    warm_python.commands(warm)
    # The commands of this environment, and of the one whose packages it sees.
    commands = [str(Path(site).parents[2] / "bin") for site in sys.path if "site-packages" in site]
    paths = os.pathsep.join([str(folder), str(warm), *commands, os.environ["PATH"]])
    runs = folder / "otel-runs"
    done = warm_python.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=environment(runs, PATH=paths, HF_HUB_OFFLINE="1", COLUMNS="80", **variables),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    Ended(done.returncode, done.stdout, done.stderr, runs, folder).settled()
    return warm_python.check_output(
        [sys.executable, "-m", "otel_mlperf", "summary"],
        cwd=folder, env=environment(runs, COLUMNS="80"), text=True,
    )  # fmt: skip


def write(page: Path) -> None:
    """Runs each command of a page, and puts its summary below it."""
    text = page.read_text()
    for one in shown(text):
        with tempfile.TemporaryDirectory() as folder:
            summary = run(files(text), one.command, Path(folder))
        before = f"```sh\n{one.command}```\n\n```\n"
        text = text.replace(f"{before}{one.summary}```", f"{before}{summary}```")
    page.write_text(text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name))
