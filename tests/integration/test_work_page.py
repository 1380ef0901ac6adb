"""The program of docs/work-and-efficiency.md prints what the page shows."""

from __future__ import annotations

import re

import page_programs
import pages
from runs import run_program

PAGE = (pages.DOCS / "work-and-efficiency.md").read_text()


def test_the_program_of_the_page(tmp_path):
    """Operations of a pass as it prints them, and the line of the summary."""
    (tmp_path / "train.py").write_text(page_programs.files(PAGE)["train.py"])
    ended = run_program(tmp_path / "runs", program=str(tmp_path / "train.py")).settled()
    printed, line = re.findall(r"^```\n(\d.*|work .*)\n```", PAGE, re.MULTILINE)

    assert ended.output.strip() == printed
    (step,) = ended.rows("SELECT DISTINCT flops FROM steps WHERE n > 0")
    assert f"{step['flops'] / 1e6:.1f} MFLOP per step" in line
    assert step["flops"] == sum(map(int, re.findall(r"=(\d+)", printed)))
    assert line in ended.summary


def test_every_formula_is_on_the_page():
    """Each figure that is worked out has its row."""
    for word in ("FLOPs of a step", "FLOPs per parameter", "FLOP/s", "MFU", "6ND"):
        assert re.search(rf"^\| {word} \|", PAGE, re.MULTILINE)
