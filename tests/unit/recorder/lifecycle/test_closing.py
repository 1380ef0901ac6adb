"""Everything that is open is closed, once, when a run ends."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from runs import LIMIT_S

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.recorder.lifecycle.closing import _end_by, summary_environ


@pytest.mark.parametrize("error", [None, ValueError("no")])
def test_run_that_ends_in_a_full_journal_waits_for_room(start, monkeypatch, error):
    """Its own row says how it ended; a header word does where there is no room to the last."""
    recording = start(journal_rows=2048)
    recorder, none = recording.recorder, recording.recorder.config
    monkeypatch.setattr("otel_mlperf.recorder.lifecycle.closing._ROOM_S", 60.0)
    for _ in range(3000):
        with om.span("tiny"):
            pass

    def make_room():
        while not recording.word(Word.END_TIME):
            os.sched_yield()
        assert not recording.sections(names.SPAN_RUN)
        recording.reader.free()
        recorder.config = none

    recorder.config = dataclasses.replace(none, agent="process")
    reader = threading.Thread(target=make_room)
    reader.start()
    recording.run.__exit__(type(error), error, None)
    reader.join()

    row = recording.one(names.SPAN_RUN)
    assert row.end == recording.word(Word.END_TIME)
    assert row.is_error == bool(recording.word(Word.FAILED)) == bool(error)


@pytest.mark.parametrize(
    ("error", "warned"), [(None, ["lost, never_closed"]), (ValueError("nan"), [])]
)
def test_sections_that_nobody_closed_are_named(recording, said, error, warned):
    """Their time goes on to the end of the run; where it failed they were interrupted."""
    om.span("never_closed").__enter__()
    for _ in om.steps(range(2)):
        with om.span("forward"):
            pass
    om.span("lost").__enter__()
    recording.run.__exit__(type(error), error, None)

    assert [text.partition("up to that time: ")[2].partition(";")[0] for text in said()] == warned


def test_open_sections_at_stop(recording):
    """Sections that are open when the run stops end with it, of all threads."""
    go_on, is_open = threading.Event(), threading.Event()

    def work():
        with om.span("beside"):
            is_open.set()
            go_on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    with om.span("outer"), om.step(), om.span("inner"):
        om.stop()
    go_on.set()
    thread.join()

    for name in ("outer", "train.step", "inner", "beside", "run"):
        assert not recording.one(name).is_error
    assert recording.one("inner").parent == recording.one("train.step").span
    assert recording.open() == []


def test_section_that_is_about_to_end_at_stop(recording):
    """A thread that has written its row, and not yet cleared its entry, ends its section once."""
    go_on, is_open = threading.Event(), threading.Event()

    def work():
        with om.span("beside") as section:
            more = (section.sid, 0, recording.span, section.track, section.entry, Kind.SECTION)
            recording.journal.put(section.t0, section.t0 + 1, *more)
            is_open.set()
            go_on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    om.stop()
    go_on.set()
    thread.join()

    row = recording.one("beside")
    assert row.end == row.start + 1
    assert recording.open() == []


TWICE = """
    import os, signal, sys, threading, time
    import otel_mlperf as om
    from otel_mlperf.recorder.lifecycle import closing

    def interrupt_the_wait(awaited, deadline):
        os.killpg(0, signal.SIGINT)
        time.sleep(60)

    setattr(closing, sys.argv[2], interrupt_the_wait)
    for number in range(3):
        print("run", number, flush=True)
        with om.start("twice", dir="runs", agent="process", readings="none"):
            if sys.argv[1] == "twice":
                raise KeyboardInterrupt("the first")
"""


@pytest.mark.parametrize("how", ["once", "twice"])
@pytest.mark.parametrize("wait", ["_is_in_time", "_await_child"])
def test_ctrl_c_while_the_summary_is_waited_for(tmp_path, how, wait):
    """It ends the program, a sweep too; no child adds a traceback, nor does a second Ctrl-C."""
    program = [sys.executable, "-c", textwrap.dedent(TWICE), how, wait]
    environ = summary_environ() | {"OTEL_SDK_DISABLED": "false"}
    ended = subprocess.run(
        program, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=LIMIT_S,
        start_new_session=True, check=False,
    )  # fmt: skip

    assert ended.returncode == -signal.SIGINT
    assert ended.stdout == "run 0\n"
    assert ended.stderr.count("Traceback") == 1
    assert ended.stderr.count("KeyboardInterrupt: the first") == (how == "twice")


@pytest.mark.fault("F94")
@pytest.mark.parametrize("field", [4, 5])
def test_run_ends_although_its_open_table_was_written_over(recording, field):
    """Neither a time nor a name that cannot be keeps the run's own row from being written."""
    journal = recording.journal
    at = (journal.free.pop() >> 3) + field
    journal.words[at - field] = 77
    journal.words[at] = (1 << 64) - 1
    om.stop()

    assert not recording.one(names.SPAN_RUN).is_error


ASKED_ABOUT = """
    import sys
    import otel_mlperf as om

    with om.start("asked", dir="runs", agent="process", readings="none"):
        pass
"""


@pytest.mark.fault("F59")
def test_a_program_that_is_looked_into_when_it_ends(tmp_path):
    """With PYTHONINSPECT Python asks for commands after the program, not after the summary too."""
    environ = summary_environ() | {"OTEL_SDK_DISABLED": "false", "PYTHONINSPECT": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ASKED_ABOUT)], cwd=tmp_path, env=environ,
        input="", capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip

    assert "SystemExit" not in ended.stderr
    assert "asked" in ended.stderr


DEEP = """
    import gc
    import otel_mlperf as om

    gc.disable()
    with om.start("deep", dir="runs", agent="process", readings="none", console=False) as run:
        sections = [om.span("deep") for _ in range(5_000)]
        for section in sections:
            section.__enter__()
        for section in reversed(sections):
            section.__exit__(None, None, None)
    print([line for line in open("/proc/self/maps") if ".journal" in line])
"""


@pytest.mark.fault("F56")
def test_more_sections_in_each_other_than_the_open_table_holds(tmp_path):
    """What fails on the short way for want of room keeps nothing of the journal's memory."""
    environ = summary_environ() | {"OTEL_SDK_DISABLED": "false"}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DEEP)], cwd=tmp_path, env=environ,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip

    assert ended.stderr == ""
    assert ended.stdout == "[]\n"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})", -signal.SIGTERM),
        ("signal(signal.SIGTERM, signal.SIG_IGN)", 0),
    ],
    ids=["not ended yet", "printing"],
)
def test_summary_that_outlives_its_time_is_named_unless_it_prints(how, code):
    """On a busy machine one that was told to end is still there: its command has to be named."""
    program = f"import signal, time; signal.{how}; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        _end_by(child, 0.0)

        assert child.returncode == code
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
