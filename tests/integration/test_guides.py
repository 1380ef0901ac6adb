"""Does each program of the pages for users run as it stands there, and say what is shown?"""

from __future__ import annotations

import guides
import page_programs
import pytest

SHOWN = [
    pytest.param(page, number, id=f"{page.stem}-{number}")
    for page in guides.GUIDES
    for number, _ in enumerate(page_programs.shown(page.read_text()))
]


@pytest.mark.parametrize(("page", "number"), SHOWN)
def test_a_command_of_a_page_says_what_is_shown_there(page, number, tmp_path):
    """Outcome, ranks, steps and rows are those of the page; times are of the moment."""
    text = page.read_text()
    one = page_programs.shown(text)[number]
    summary = page_programs.run(page_programs.files(text), one.command, tmp_path)

    assert page_programs.told(summary) == page_programs.told(one.summary)
    assert page_programs.told(summary)["0 lost"]
    assert page_programs.rows(summary) <= page_programs.explained(text)


def test_cells_of_the_notebook_run_one_after_the_other(tmp_path):
    """As a kernel runs them: in one process, and the run ends in the last."""
    cells = [
        block
        for block in guides.blocks((guides.DOCS / "notebooks.md").read_text(), "python")
        if block.startswith("# cell\n")
    ]
    command = "python notebook.py && otel-mlperf summary --json > summary.json"
    summary = page_programs.run({"notebook.py": "\n".join(cells)}, command, tmp_path)

    assert len(cells) > 2
    assert page_programs.told(summary) == {
        "head": "finished · 1 rank, 1 node",
        "steps": 50,
        "rows": {"forward", "backward", "optimizer", "not in a span"},
        "0 lost": True,
    }
