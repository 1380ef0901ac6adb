"""``otel-mlperf top`` answers on a pipe, and for programs."""

from __future__ import annotations

import json
import sys

import pytest
from run_folders import MS, RunFolderBuilder, digits

from otel_mlperf.cli import main


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of runs that the command looks in."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def top(monkeypatch, capsys):
    """Calls the real entry; gives exit code, output and messages."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["otel-mlperf", "top", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return call


@pytest.mark.parametrize("arguments", [(), ("--once",), ("3f2a", "--once"), ("digits",)])
def test_one_plain_frame_when_piped(runs, top, arguments):
    """Without a terminal it prints one frame, without colour, and leaves."""
    digits(runs).write()

    code, out, err = top(*arguments)

    assert (code, err) == (0, "")
    assert out.startswith("digits · 3f2a · finished · 1 rank · ")
    assert out.splitlines()[-1].startswith("run finished")
    assert "\x1b" not in out


def test_json_has_the_same_facts(runs, top):
    """For programs, in nanoseconds and bytes."""
    digits(runs).write()

    found = json.loads(top("--json")[1])

    assert (found["outcome"], found["is_seen"], found["step"]) == ("finished", False, 39)
    assert [one["rank"] for one in found["ranks"]] == [0]
    assert len(found["ranks"][0]["step_ns"]) == 24


def test_a_run_that_has_just_begun_is_no_error(runs, top):
    """Neither a process nor a step."""
    RunFolderBuilder(runs).write()

    code, out, err = top()

    assert (code, err) == (0, "")
    assert "no step yet" in out


def test_a_wrong_run_is_said(runs, top):
    """As by every command."""
    digits(runs).write()

    code, out, err = top("nothing")

    assert (code, out) == (66, "")
    assert "looking for run 'nothing'" in err


def test_what_is_worth_changing_stands_at_the_foot(runs, top):
    """Of the run so far; programs get all of it."""
    run = RunFolderBuilder(runs)
    for n in range(60):
        run.step(n, n * 100 * MS, {"data.load": 90 * MS, "forward": 5 * MS})
    run.process()
    run.write()

    _, out, _ = top("--once")
    found = json.loads(top("--json")[1])["findings"]

    assert out.splitlines()[-2].startswith("→ ")
    assert "data" in out.splitlines()[-2]
    assert found[0]["id"] == "data_loading"
