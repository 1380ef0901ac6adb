"""The agent is started detached, watched, and never waited for too long."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from open_files import open_files
from runs import LIMIT_S
from servers.running import wait_until

import otel_mlperf as om
from otel_mlperf.journal.folder_lock import OnlyOne, is_served
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.lifecycle import agent_launch, closing
from otel_mlperf.recorder.lifecycle.agent_launch import (
    LONGEST_PAUSE_NS,
    AgentWatch,
    agent_environ,
    start_process,
)
from otel_mlperf.recorder.lifecycle.closing import PATIENCE_S
from otel_mlperf.settings.config import Config

ROOT = Path(__file__).parents[4]


def agent_of(recording):
    """The agent's pid, once it serves the journal."""
    return wait_until(lambda: recording.word(Word.AGENT_PID))


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def served(start):
    """A run with an agent as a process; both are gone afterwards."""
    recording = start(agent="process", drain_timeout_s=1)
    yield recording
    pid = recording.word(Word.AGENT_PID)
    recording.may_fail = True  # it cannot be asked once the journal is given up
    recording.reader.close()
    recording.run.stop()
    wait_until(lambda: not pid or is_gone(pid))


@pytest.mark.fault("F28")
def test_agent_is_nobodys_child(served):
    """It is not a child of the program, in a session of its own, with none of its files."""
    pid = agent_of(served)

    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[1]) != os.getpid()
    assert int(stat[3]) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    ours = {os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2)}
    assert not open_files(pid).keys() & ours - {"/dev/null"}
    assert int(stat[16]) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)


def test_each_host_has_files_of_its_own(served):
    """On a shared disk two hosts that append to one file would write over each other."""
    agent_of(served)
    folder = Path(served.run.path) / "agent"

    assert [entry.name for entry in folder.iterdir()] == [os.uname().nodename]
    assert (folder / os.uname().nodename / "start.log").exists()


def test_room_is_made_when_a_run_has_started(start, monkeypatch):
    """What a program records at once is not before whoever takes it out of the journal."""
    patiently = agent_launch._WAIT_FIRST.replace(f" {agent_launch._UNTIL_READY_S})", " 9)")
    monkeypatch.setattr(agent_launch, "_WAIT_FIRST", patiently)
    recording = start(agent="process", drain_timeout_s=1)
    was_served = is_served(Path(recording.journal.path).parent)
    recording.may_fail = True
    recording.reader.close()
    recording.run.stop()

    assert was_served


def test_modules_beside_the_script(tmp_path):
    """A ``queue.py`` beside the script does not break the agent, nor does PYTHONPATH."""
    for name in ("queue.py", "json.py", "numpy.py"):
        (tmp_path / name).write_text("raise RuntimeError('not for you')\n")
    (tmp_path / "script.py").write_text(
        f"import sys; here = sys.path.pop(0); sys.path.insert(0, {str(ROOT)!r})\n"
        "import otel_mlperf as om\n"
        "with om.start('x', console=False, dir=sys.argv[1], drain_timeout_s=1) as run:\n"
        "    with om.span('work'): pass\n"
        "print(run.path)\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py", str(tmp_path / "runs")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)} | {"PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    # The program itself imports json: what is tested is the agent, which must have stored the run.
    folder = Path(done.stdout.strip() or tmp_path / "none")

    assert done.returncode == 0, done.stderr
    assert wait_until(lambda: list(folder.glob("tables/processes/*")))


def test_environment():
    """The agent gets the settings in force, and nothing that hooks into processes."""
    os.environ["LD_PRELOAD"] = ""
    try:
        environ = agent_environ(Config(journal_rows=4096, dir="here"), "/there/run")
    finally:
        del os.environ["LD_PRELOAD"]

    assert environ["OTEL_MLPERF_JOURNAL_ROWS"] == "4096"
    assert environ["OTEL_MLPERF_DIR"] == "/there"
    assert environ["OMP_NUM_THREADS"] == "1"
    assert environ["MALLOC_TRIM_THRESHOLD_"] == "131072"
    assert "LD_PRELOAD" not in environ


@pytest.mark.fault("F27")
def test_killed_agent_is_started_again(served):
    """An agent that was killed is replaced when a step finds its heartbeat too old."""
    first = agent_of(served)
    wait_until(lambda: served.word(Word.BEAT))
    os.kill(first, signal.SIGKILL)
    # A killed process is a zombie before the last of its threads has let go of its lock.
    wait_until(lambda: not is_served(Path(served.journal.path).parent))
    served.run._watch.look(time.monotonic_ns() + 60_000_000_000)

    assert wait_until(lambda: served.word(Word.AGENT_PID) not in (0, first))


@pytest.fixture
def watched(start, monkeypatch):
    """A watch over an agent that is not there, and the times at which it starts one."""
    recording = start()
    begun = []

    class Here:
        """A thread that runs at once."""

        def __init__(self, target, **_):
            self.start = target

    monkeypatch.setattr(threading, "Thread", Here)
    watch = AgentWatch(recording.journal, recording.recorder.meta, Config(agent="process"))
    watch._starts = [time.monotonic_ns()]
    monkeypatch.setattr(AgentWatch, "start", lambda self: begun.append(self.now))
    return watch, begun, Path(recording.journal.path).parent


def look_until(watch, begun, minutes):
    """Looks every ten seconds, as steps do; each start is one that dies at once."""
    first = watch._starts[0]
    for tenth in range(1, minutes * 6 + 1):
        watch.now = first + tenth * 10_000_000_000
        before = len(begun)
        watch.look(watch.now)
        watch._starts += begun[before:]


@pytest.mark.fault("F27")
def test_starts_of_an_agent_that_dies_back_off_and_do_not_end(watched, said):
    """Pauses grow to five minutes and no further; it is said once that this goes on."""
    watch, begun, _ = watched
    look_until(watch, begun, minutes=120)

    pauses = [(after - before) // 10**9 for before, after in pairwise(begun)]
    assert pauses[:6] == [30, 30, 40, 80, 160, 300]
    assert set(pauses[6:]) <= {150, 160, 300}
    assert watch.now - begun[-1] <= LONGEST_PAUSE_NS
    assert len([text for text in said() if "has died 5 times within an hour" in text]) == 1


@pytest.mark.fault("F93")
def test_an_agent_that_is_slow_is_not_dead(watched):
    """While its lock is held, silence of whatever length starts no other; a death then does."""
    watch, begun, folder = watched
    with OnlyOne(folder) as is_mine:
        assert is_mine
        look_until(watch, begun, minutes=90)
        assert begun == []
    watch._next_look = 0
    watch.look(watch.now)

    assert len(begun) == 1


def test_looked_for_after_an_hour(start, monkeypatch):
    """An agent that is gone after an hour is started again, also if that takes its time."""
    recording = start()
    starts = []
    monkeypatch.setattr(AgentWatch, "_restart", lambda self: starts.append(1))
    watch = AgentWatch(recording.journal, recording.recorder.meta, Config(agent="process"))
    now = time.monotonic_ns()
    watch._starts = [now]
    watch.look(now + 7_200_000_000_000)
    watch.look(now + 7_210_000_000_000)
    wait_until(lambda: len(starts) == 2)


def test_look_is_cheap_while_the_agent_lives(start, monkeypatch):
    """While the heartbeat is young, looking starts nothing."""
    recording = start()
    monkeypatch.setattr(AgentWatch, "start", lambda self: 1 / 0)
    watch = AgentWatch(recording.journal, recording.recorder.meta, Config(agent="process"))
    watch._starts = [time.monotonic_ns()]
    later = time.monotonic_ns() + 60_000_000_000
    recording.reader.set_word(Word.BEAT, later)
    watch.look(later)


PATIENT = f"""
from otel_mlperf.journal import stored_wait

stored_wait.wait_for_tables.__defaults__ = ({LIMIT_S},)
"""


@pytest.fixture
def _patient(tmp_path, monkeypatch):
    """A summary waits for the agent's answer for as long as that takes on a busy machine."""
    (tmp_path / "patient").mkdir()
    (tmp_path / "patient" / "sitecustomize.py").write_text(PATIENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "patient"))
    monkeypatch.setattr("otel_mlperf.recorder.lifecycle.run._SUMMARY_S", LIMIT_S)


@pytest.mark.slow
@pytest.mark.usefixtures("_patient")
def test_summary_and_notebook(start):
    """A finished run gives its summary as data, and as what a notebook shows."""
    recording = start("digits", agent="process", drain_timeout_s=1)
    recording.reader.close()
    recording.may_fail = True
    for _ in om.steps([[1, 2]] * 3):
        with om.span("forward"):
            pass
    recording.run.stop()
    wait_until(lambda: list(recording.run.path.glob("tables/steps/*")))

    assert "forward" in json.dumps(recording.run.summary())
    html = recording.run._repr_html_()
    assert html.startswith("<div")
    assert {"digits", "3 steps", "<table>", "<iframe"} <= {
        word for word in ("digits", "3 steps", "<table>", "<iframe") if word in html
    }


@pytest.mark.slow
@pytest.mark.usefixtures("_patient")
def test_notebook_shows_of_a_run_that_goes_on_what_is_known_by_now(served):
    """The table of this moment, and then what a finished run shows."""
    for _ in om.steps([[1, 2]] * 3):
        with om.span("forward"):
            pass

    table, _, rest = served.run._repr_html_().partition("</table>")
    assert served.run.is_active
    assert "forward" in table
    for word in ("3 steps", "running", "forward", "<table>", "<iframe"):
        assert word in rest, word


@pytest.mark.slow
def test_summary_of_nothing(start, monkeypatch):
    """A run that recorded nothing says so, in a summary of the same fields."""
    recorded = set(start(agent="none").run.summary())
    om.stop()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    disabled = om.start("x")

    for run in (disabled, om.Run("x")):
        summary = run.summary()
        assert set(summary) == recorded
        assert (summary["name"], summary["outcome"]) == ("x", "not recorded")
        assert summary["missing"] == ["nothing was recorded (never started, or recording is off)"]
        assert (summary["as_of"], summary["steps"], summary["duration_ns"]) == (None, None, None)
        assert (summary["findings"], summary["last"]) == ([], {})
        assert summary["telemetry"]["lost"] is None
        assert "nothing was recorded" in run._repr_html_()


def test_summary_that_cannot_be_made(start):
    """A run whose folder somebody removed goes on: its summary says why it is empty."""
    recording = start()
    shutil.rmtree(recording.run.path)

    summary = recording.run.summary()

    assert summary["outcome"] == "unknown"
    assert (summary["id"], summary["steps"]) == (recording.run.id, None)
    assert f"looking for run '{recording.run.path}'" in summary["missing"][0]


@pytest.mark.slow
@pytest.mark.usefixtures("_patient")
def test_summary_in_the_loop_has_every_step_that_ended(served):
    """It is as of the call: asked within the 300th step, all those before it are there."""
    seen = []
    for number in om.steps(range(301)):
        with om.span("forward"):
            pass
        if number % 100 == 0:
            before_ns = time.time_ns()
            seen.append((number, before_ns, served.run.summary()))

    for number, before_ns, summary in seen:
        assert (summary["outcome"], summary["missing"]) == ("running", [])
        assert summary["as_of"]["time_ns"] >= before_ns
        count = summary["steps"]["count"] if summary["steps"] else 0
        assert (count, summary["as_of"]["step"]) == (number, number - 1 if number else None)


@pytest.mark.slow
def test_summary_of_an_agent_that_does_not_answer(served):
    """It comes all the same, and says since when something may be missing."""
    pid = agent_of(served)
    wait_until(lambda: served.word(Word.TABLES_UNTIL))
    os.kill(pid, signal.SIGSTOP)
    try:
        before = served.run.summary()
        with om.step():
            pass
        summary = served.run.summary()
    finally:
        os.kill(pid, signal.SIGCONT)

    assert summary["as_of"]["time_ns"] == before["as_of"]["time_ns"]
    assert summary["steps"] is None
    (missing,) = summary["missing"]
    assert re.fullmatch(r"rank 0: the last \d+\.\d s are not stored yet", missing)


@pytest.mark.usefixtures("_patient")
def test_summary_in_a_child_process(served):
    """A forked child that asks for it gets its parent's, and no exception."""
    with om.step():
        pass
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, json.dumps(served.run.summary()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        summary = json.loads(answer.read())

    assert os.waitpid(child, 0)[1] == 0
    assert (summary["id"], summary["steps"]["count"]) == (served.run.id, 1)


@pytest.mark.fault("F94")
def test_end_of_a_run_whose_state_was_written_over(served):
    """Its agent reads it to the end and leaves, while the process goes on."""
    pid = agent_of(served)
    served.journal.words[Word.STATE] = 0
    served.run.stop()

    wait_until(lambda: is_gone(pid), what="the agent to leave")
    assert not Path(served.journal.path).exists()


@pytest.mark.fault("F29")
def test_process_that_cannot_start(tmp_path, monkeypatch):
    """A launcher that fails is an error with the place of its log."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(subprocess.SubprocessError, match=r"start\.log"):
        start_process(str(tmp_path), str(tmp_path), Config())


@pytest.mark.fault("F29")
def test_thread_where_no_process_can_start(start, monkeypatch, said):
    """Where no process can be started the agent runs in a thread; that is said."""
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    recording = start(agent="process", drain_timeout_s=1)
    assert wait_until(lambda: recording.word(Word.AGENT_PID)) == os.getpid()
    recording.run.stop()

    assert any("runs in a thread" in text for text in said())


@pytest.mark.fault("F29")
def test_neither_process_nor_thread(start, monkeypatch, said):
    """Where not even a thread can be started the program goes on, and what to do is said."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(AgentWatch, "ensure", lambda self: None)
    recording = start(agent="process")
    with om.span("work"):
        pass

    assert [row.name for row in recording.sections()] == ["work"]
    assert any("otel-mlperf doctor --recover" in text for text in said())


@pytest.mark.sampled(1)
@pytest.mark.fault("F24")
@pytest.mark.parametrize("how", ["stopped", "never there"])
def test_end_is_bounded(start, monkeypatch, how):
    """With an agent that does not answer, stopping leaves Python its part of two seconds."""
    if how == "never there":
        monkeypatch.setattr(AgentWatch, "start", lambda self: None)
        monkeypatch.setattr(AgentWatch, "ensure", lambda self: None)
    recording = start(agent="process", drain_timeout_s=1)
    pid = 0
    if how == "stopped":
        pid = agent_of(recording)
        os.kill(pid, signal.SIGSTOP)
    with_rows = recording.journal.path
    began = time.monotonic()
    recording.run.stop()
    took = time.monotonic() - began
    if pid:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_gone(pid))

    assert PATIENCE_S <= 1.5 < took < 60  # a bound against hanging, not a measurement
    assert JournalReader(with_rows, recording.journal.buffer).is_owned


def test_a_run_on_a_console_says_at_once_that_it_records_and_where(start, capfd):
    """One line comes before the program goes on; a run that prints nothing says nothing."""
    recording = start("loud", console=True)
    assert capfd.readouterr().err == f"otel_mlperf: recording loud into {recording.run.path}\n"
    recording.run.stop()
    start("quiet", console=False)
    assert "quiet" not in capfd.readouterr().err


def test_a_summary_that_is_late_never_comes_and_its_command_does(
    start, monkeypatch, tmp_path, capfd
):
    """Once stop() returns its process is gone; the last line names the command to type."""
    slow, started = tmp_path / "slow", tmp_path / "started"
    slow.write_text(f"#!/bin/sh\necho $$ > {started}\nexec sleep 3600\n")
    slow.chmod(0o700)
    recording = start(agent="process", console=True, drain_timeout_s=1)
    wait_until(lambda: recording.word(Word.AGENT_PID))
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(closing, "SUMMARY_PATIENCE_S", closing.PATIENCE_S)
    capfd.readouterr()

    recording.run.stop()

    command = f"otel-mlperf summary {recording.run.path}"
    assert capfd.readouterr().err == (
        f"otel_mlperf: the summary was not ready in time: {command}\n"
    )
    assert not started.exists() or is_gone(int(started.read_text()))
