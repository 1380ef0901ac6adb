"""The commands and files that CONTRIBUTING.md mentions exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

from otel_mlperf.settings.config import known_variables

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_its_targets_are_those_of_make():
    """All that the Makefile offers to people are explained, and no other."""
    offered = re.search(r"^# make (.*?):", (ROOT / "Makefile").read_text())[1]
    explained = re.findall(r"^\| `make (\w+)`", PAGE, re.MULTILINE)

    assert sorted(explained) == sorted(offered.split(" | "))


def test_its_paths_are_there():
    """Of files and folders, wherever they stand in a line."""
    roots = r"(?:otel_mlperf|tests|docs|deploy|requirements)"
    named = set(re.findall(rf"(?<![\w/~]){roots}(?:/[\w.]+)*/?", PAGE))

    assert len(named) > 15
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_its_script_can_be_run():
    """It is Python, and what it imports exists."""
    script = ast.parse(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1])
    imported = [node for node in script.body if isinstance(node, ast.ImportFrom)]

    assert imported
    for node in imported:
        module = importlib.import_module(node.module)
        assert [name.name for name in node.names if not hasattr(module, name.name)] == []


def test_its_variables_are_known():
    """A start does not take them for misspelt ones."""
    named = set(re.findall(r"OTEL_MLPERF_\w+", PAGE))

    assert named
    assert named <= set(known_variables())
