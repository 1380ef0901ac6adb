"""A run becomes a page in a file."""

from __future__ import annotations

import os

import pytest
from run_folders import digits

from otel_mlperf.cli.report import report
from otel_mlperf.errors import NoSuchRun, OutputError


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The path of a run; the current folder is empty."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return str(digits(tmp_path).write())


def test_a_page_is_named_for_its_run(run, capsys):
    """It says what it wrote and what opens it."""
    report([run])

    assert os.listdir() == ["digits-3f2a.html"]
    assert capsys.readouterr().out.startswith("digits-3f2a.html: ")


def test_a_page_is_replaced_only_by_force(run):
    """And until then keeps what it has."""
    with open("mine.html", "w") as file:
        file.write("x")

    with pytest.raises(OutputError, match="the file already exists; replace it with --force"):
        report([run], out="mine.html")

    report([run], out="mine.html", force=True)
    with open("mine.html") as file:
        assert file.read().rstrip().endswith("</html>")


def test_a_run_that_is_not_there_leaves_no_file(run):
    """Nor half of one."""
    with pytest.raises(NoSuchRun):
        report([run, "nope"], out="page.html")
    assert os.listdir() == []
