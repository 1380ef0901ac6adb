"""The load programs for the recorder can be started, and ``make load`` starts them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "tests" / "load").glob("*.py"))
PARTS = {"job.py", "loads.py"}
"""What the others start, and what they share."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_it_starts(program):
    """Everything that it imports is there; who asks is told what it is for."""
    done = subprocess.run(
        [sys.executable, program, *(() if program.name == "loads.py" else ("--help",))],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_make_load_runs_all_of_them():
    """None is forgotten."""
    recipe = (ROOT / "Makefile").read_text().partition("\nload:")[2].partition("|| exit")[0]

    assert set(re.findall(r"\w+\.py", recipe)) == {path.name for path in PROGRAMS} - PARTS
