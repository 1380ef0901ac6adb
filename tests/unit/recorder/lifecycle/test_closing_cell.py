"""A notebook shows the closing text where the run ended, with its content once it is stored.

IPython is stood in for by what it promises of ``display()``: a handle that puts something else in
the place of what was shown, from any thread.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
from servers.running import wait_until

import otel_mlperf as om
from otel_mlperf.recorder.lifecycle.agent_launch import AgentWatch, start_process
from otel_mlperf.recorder.lifecycle.run_identity import is_notebook


class ZMQInteractiveShell:
    """What notebooks run, by its name."""


class CloudShell(ZMQInteractiveShell):
    """What a cloud makes of it."""


class Notebook:
    """The lines of its cells, each with all that has stood there."""

    def __init__(self, shell):
        self.lines = []
        self.shell = shell

    def display(self, shown, *, raw, display_id):
        assert raw
        assert display_id
        line = [shown]
        self.lines.append(line)
        return SimpleNamespace(update=lambda other, raw: line.append(other))


@pytest.fixture
def notebook(monkeypatch):
    """A notebook that runs the test."""
    made = Notebook(CloudShell())
    top, display = ModuleType("IPython"), ModuleType("IPython.display")
    top.get_ipython, display.display = (lambda: made.shell), made.display
    monkeypatch.setitem(sys.modules, "IPython", top)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return made


def test_shells_that_are_made_of_a_notebooks_are_notebooks(notebook):
    """Those of clouds have names of their own."""
    assert is_notebook()
    notebook.shell = object()
    assert not is_notebook()


def test_closing_text_is_shown_where_the_run_ended(start, notebook, capfd):
    """One line of the cell that says that it has ended, and then the summary in its place."""
    recording = start("digits", agent="process", console=True, drain_timeout_s=1)
    recording.reader.close()
    recording.may_fail = True
    for _ in om.steps(range(3)):
        with om.span("forward"):
            pass
    recording.run.stop()

    (line,) = notebook.lines
    wait_until(lambda: len(line) == 2)
    name = recording.run.path.name
    assert line[0] == {
        "text/plain": f"{name} has ended: the summary appears here when all data is stored"
    }
    assert line[1]["text/plain"].startswith(f"digits · {name[-4:]} · finished · 1 rank, 1 node · ")
    assert "\n3 steps · mean " in line[1]["text/plain"]
    assert line[1]["text/html"].startswith("<div ")
    assert "3 steps" in line[1]["text/html"]
    assert capfd.readouterr().err == f"otel_mlperf: recording digits into {recording.run.path}\n"


@pytest.mark.slow
def test_closing_text_comes_when_all_is_stored(start, notebook, monkeypatch):
    """However late the agent is: what stands there until then does not say that the run goes on."""
    monkeypatch.setattr(AgentWatch, "start", lambda self: None)
    monkeypatch.setattr(AgentWatch, "ensure", lambda self: None)
    recording = start("digits", agent="process", console=True, drain_timeout_s=1)
    with om.step():
        pass
    recording.may_fail = True
    recording.run.stop()
    (line,) = notebook.lines
    before = [*line]
    start_process(recording.journal.path, str(recording.run.path), recording.recorder.config)
    wait_until(lambda: len(line) == 2)

    assert [list(shown) for shown in before] == [["text/plain"]]
    assert "running" not in before[0]["text/plain"]
    assert " · finished · 1 rank" in line[1]["text/plain"]
    assert "\n1 step · " in line[1]["text/plain"]


@pytest.mark.parametrize("why", ["fork", "refused"])
def test_where_nothing_can_be_shown_the_summary_is_printed(start, notebook, capfd, why):
    """In a fork of the kernel, and where the kernel is ending."""
    if why == "fork":
        session = SimpleNamespace(pid=os.getpid() + 1)
        notebook.shell.kernel = SimpleNamespace(session=session)
    else:
        sys.modules["IPython.display"].display = None
    recording = start("digits", agent="process", console=True, drain_timeout_s=1)
    recording.reader.close()
    recording.may_fail = True
    recording.run.stop()

    assert notebook.lines == []
    said = []
    shown = ("digits · ", "otel-mlperf summary")  # the second on a busy machine
    wait_until(
        lambda: said.append(capfd.readouterr().err) or any(one in "".join(said) for one in shown)
    )
