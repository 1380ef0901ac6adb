"""Execution of a recipe of ``docs/EXTENDING.md`` exactly as written on the page.

A section is a recipe. Its blocks of Python whose first line is ``# file: NAME`` are files of a
distribution, its blocks of TOML the entry points of that distribution; the block whose first line
is ``# check`` is run where the distribution is installed, and must end well.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import warm_python
from pages import DOCS, ROOT

PAGE = DOCS / "EXTENDING.md"
NAME = "acme_recipe"
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# file: ([\w./-]+)\n")
_CHECK = "# check\n"
_PATIENCE_S = 300
# A run waits two seconds for its agent, which may be too short beside other work.
_PATIENTLY = f"""
import runpy, sys
from otel_mlperf.recorder.lifecycle import closing
closing.PATIENCE_S = {_PATIENCE_S}
runpy.run_path(sys.argv[1], run_name="__main__")
"""


class Recipe(NamedTuple):
    """What one section says is to be written, and how one sees that it works."""

    files: dict[str, str]
    """Content by name."""
    entry_points: dict[str, dict[str, str]]
    """By group."""
    checks: list[str]


def recipes(text):
    """Each section of a page with a block of code, by its title."""
    parts = _SECTION.split(text)[1:]
    found = {title: read(body) for title, body in zip(parts[::2], parts[1::2], strict=True)}
    return {title: recipe for title, recipe in found.items() if any(recipe)}


def read(text):
    """The blocks of one section."""
    recipe = Recipe({}, {}, [])
    for language, code in _BLOCK.findall(text):
        named = _FILE.match(code)
        if named:
            assert named[1] not in recipe.files, f"{named[1]} stands there twice"
            recipe.files[named[1]] = code
        elif code.startswith(_CHECK):
            recipe.checks.append(code)
        elif language == "toml":
            recipe.entry_points.update(tomllib.loads(code)["project"]["entry-points"])
    return recipe


def carry_out(recipe, folder):
    """Installs the recipe's distribution in ``folder`` and runs its checks; what they said."""
    site, work = folder / "site", folder / "work"
    work.mkdir(parents=True)
    install(recipe, site)
    for number, check in enumerate(recipe.checks):
        path = work / f"check_{number}.py"
        path.write_text(check)
        done = warm_python.run(
            [sys.executable, "-c", _PATIENTLY, path], cwd=work, env=environ(site, work),
            capture_output=True, text=True, check=False, timeout=_PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        yield done.stdout


def install(recipe, site, name=NAME):
    """Lays files and metadata down as an installer does; of each name one may lie in ``site``."""
    about = site / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in recipe.entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for file, content in recipe.files.items():
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def environ(site, work):
    """This environment with the distribution in it, and without settings of somebody's own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    paths = [str(site), str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    runs = {"OTEL_MLPERF_DIR": str(Path(work) / "otel-runs")}
    return kept | {"PYTHONPATH": os.pathsep.join(paths)} | runs
