"""A run without steps is shown as its trace."""

from __future__ import annotations

import json
import sys

import pytest
from run_folders import MS, RUN_ID, RunFolderBuilder, S, digits

from otel_mlperf import ids
from otel_mlperf.analysis.steps.run_trace import find_run_trace
from otel_mlperf.cli import main
from otel_mlperf.errors import NoSuchRun
from otel_mlperf.report.step_page import render_run_trace
from otel_mlperf.store.run_folders import read_run


def preprocess(tmp_path, restart=0, rank=0, run=None):
    """A run of a root and three sections, one of them in a worker."""
    run = run or RunFolderBuilder(tmp_path, "preprocess")
    trace = f"{ids.run_trace_id(RUN_ID, restart):032x}"
    of_run = {
        "trace_id": trace, "restart": restart, "rank": rank, "phase": "",
    }  # fmt: skip
    run.process(10 * S, restart=restart, rank=rank)
    root = run.span(None, "run", 0, 10 * S, **of_run)
    tokenize = run.span(None, "tokenize", S, 6 * S, parent_id=root, **of_run)
    run.span(None, "read", 2 * S, 3 * S, parent_id=tokenize, **of_run)
    run.span(
        None, "decode", 2 * S, 4 * S, parent_id=root, **of_run | {"track": 7, "thread": "worker 0"}
    )
    return run


def test_a_run_without_steps_is_its_root_with_its_sections(tmp_path):
    """Parents before children, each with its own time, on every rank."""
    run = preprocess(tmp_path)
    preprocess(tmp_path, rank=1, run=run)
    found = find_run_trace(read_run(run.write()))

    assert found.trace_id == f"{ids.run_trace_id(RUN_ID, 0):032x}"
    assert [(one.rank, one.duration_ns) for one in found.ranks] == [(0, 10 * S), (1, 10 * S)]
    assert [
        (one.name, one.depth, one.start_ns // S, one.duration_ns // S, one.self_ns // S, one.beside)
        for one in found.ranks[0].spans
    ] == [
        ("run", 0, 0, 10, 4, False),
        ("tokenize", 1, 1, 6, 3, False),
        ("read", 2, 2, 3, 3, False),
        ("decode", 1, 2, 4, 4, True),
    ]


def test_it_looks_like_a_step(tmp_path):
    """A tree with a chart."""
    found = find_run_trace(read_run(preprocess(tmp_path).write()))

    assert render_run_trace(found) == (
        f"""\
preprocess · run 3f2a · the run itself and sections outside steps
trace {ids.run_trace_id(RUN_ID, 0):032x}
rank 0 · 10.0 s
  span                                    time      self
  run                                   10.0 s    4.00 s  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
    tokenize                            6.00 s    3.00 s    ▇▇▇▇▇▇▇▇▇▇▇▇▇
      read                              3.00 s    3.00 s      ▇▇▇▇▇▇▇
    decode (worker 0)                   4.00 s    4.00 s      ▇▇▇▇▇▇▇▇▇
"""
    )


def test_a_run_that_was_started_again_shows_its_newest_start(tmp_path):
    """Each start has a trace of its own."""
    run = preprocess(tmp_path)
    preprocess(tmp_path, restart=1, run=run)
    found = find_run_trace(read_run(run.write()))

    assert (found.restart, found.trace_id) == (1, f"{ids.run_trace_id(RUN_ID, 1):032x}")
    assert len(found.ranks) == 1


def test_a_run_with_steps_has_none(tmp_path):
    """Nor one of which nothing is stored yet; a rank that is not there is said so."""
    assert find_run_trace(read_run(digits(tmp_path).write())) is None
    begun = RunFolderBuilder(tmp_path / "begun")
    begun.process(outcome="running")
    folder = read_run(begun.write())
    assert find_run_trace(folder) is None
    with pytest.raises(NoSuchRun):
        find_run_trace(folder, rank=3)


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """Calls ``otel-mlperf show``; gives exit code and output."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["otel-mlperf", "show", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, capsys.readouterr().out

    return call


def test_the_command_shows_it_to_people_and_programs(tmp_path, shown):
    """Where a number is asked for there is no such step."""
    preprocess(tmp_path).write()

    code, said = shown("preprocess")
    assert (code, said.splitlines()[4].split()[:3]) == (0, ["run", "10.0", "s"])
    code, said = shown("preprocess", "--json")
    spans = json.loads(said)["ranks"][0]["spans"]
    assert [(span["name"], span["self_ns"]) for span in spans][:2] == [
        ("run", 4 * S),
        ("tokenize", 3000 * MS),
    ]
    assert shown("preprocess", "--step", "3") == (66, "")


def test_a_section_of_a_forked_child_is_no_part_of_its_parent(tmp_path):
    """Its thread has the number and the name of its parent's, but is another one."""
    run = preprocess(tmp_path)
    of_run = {"trace_id": f"{ids.run_trace_id(RUN_ID, 0):032x}", "phase": ""}
    root = f"{1:016x}"
    run.span(None, "load", 8 * S, S, parent_id=root, thread_id=5151, **of_run)
    found = find_run_trace(read_run(run.write()))

    spans = {one.name: one for one in found.ranks[0].spans}
    assert (spans["load"].beside, spans["run"].self_ns) == (True, 4 * S)
    assert "load (another process)" in render_run_trace(found)
