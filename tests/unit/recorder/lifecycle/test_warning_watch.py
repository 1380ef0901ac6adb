"""The program gets each warning once until it clears, at its steps and never in its way."""

from __future__ import annotations

import os
import threading

import pytest
from interrupted_calls import interruptions

import otel_mlperf as om
from otel_mlperf.journal.bulletin import RunWarning, drop_readings, write_readings
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.core.program_callbacks import WARNING
from otel_mlperf.recorder.lifecycle.agent_launch import AgentWatch
from otel_mlperf.recorder.lifecycle.warning_watch import WarningWatch


@pytest.fixture
def board(start, monkeypatch):
    """Writes the warnings that hold: of this rank, of the node, of another rank."""
    monkeypatch.setattr(WARNING, "all", ())
    recording = start(console=True, agent="none")
    folder, own = os.path.split(recording.journal.path)
    number = 0

    def write(*rules, journal=own):
        nonlocal number
        number += 1
        found = [RunWarning(rule, journal, {}, 1, 0, f"{rule} holds", "Act.") for rule in rules]
        write_readings(folder, {}, found)
        os.utime(os.path.join(folder, "readings"), ns=(number, number))

    write.recording = recording
    yield write
    drop_readings(folder)


def take_steps(recorder_of=None):
    """Steps after which everything that is due now and then has been done."""
    recorder = om.recorder.api.span.active()
    for call in recorder.stepping.now_and_then:
        if isinstance(getattr(call, "__self__", None), WarningWatch):
            call.__self__._due_ns = 0
    recorder.stepping.due_ns = 0
    with om.step():
        pass


def test_callback(board):
    """The callback gets each warning once, also after others, and again when it had cleared."""
    heard = []
    assert om.on_warning(heard.append) == heard.append
    for rules in (("A",), ("A",), ("A", "B"), ("B",), ("A", "B")):
        board(*rules)
        take_steps()

    assert [one.rule for one in heard] == ["A", "B", "A"]
    assert (heard[0].summary, heard[0].action) == ("A holds", "Act.")


# A file that was opened the moment before is closed by its finalizer, which warns.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.fault("F95")
def test_time_limit_while_it_looks(board):
    """A TimeoutError is an OSError, too: at whatever moment of a step it reaches the program."""

    def look():
        for call in om.recorder.api.span.active().stepping.now_and_then:
            watch = getattr(call, "__self__", None)
            if isinstance(watch, WarningWatch):
                watch._changed_ns = 0
            if isinstance(watch, AgentWatch):
                watch._next_look = 0
        take_steps()

    board("A")
    look()
    for moment, raised, arrived in interruptions(om, TimeoutError, look):
        assert arrived is raised, moment.where


def test_terminal(board, said):
    """The terminal has a line for each, with what to do."""
    board("A", "B")
    take_steps()
    take_steps()

    assert said() == ["A holds. Act.", "B holds. Act."]


def test_terminal_of_a_quiet_run(start, said):
    """Without a console there is no line, and the callback is called all the same."""
    heard = []
    recording = start(console=False)
    folder = os.path.dirname(recording.journal.path)
    om.on_warning(heard.append)
    write_readings(folder, {}, [RunWarning("A", "", {}, 1, 0, "A holds", "Act.")])
    take_steps()
    om.remove_callback(heard.append)
    drop_readings(folder)

    assert (said(), [one.rule for one in heard]) == ([], ["A"])


def test_warnings_of_others(board, said):
    """Another rank's warning is not told here."""
    board("A", journal="other")
    take_steps()

    assert said() == []


def test_warning_of_the_node(board, said):
    """What is of the whole node is said by the node's first rank alone, and called everywhere."""
    heard = []
    om.on_warning(heard.append)
    recorder = om.recorder.api.span.active()
    recorder.meta = type("Meta", (), {"local_rank": 1, "run_span": recorder.meta.run_span})
    board("A", journal="")
    take_steps()

    assert said() == []
    assert [one.rule for one in heard] == ["A"]


def test_what_cannot_be_called_is_refused():
    """It is said at once, not when the first warning comes."""
    with pytest.raises(om.ConfigError, match=r"on_warning\(3\): expected a function"):
        om.on_warning(3)


@pytest.mark.fault("F50")
def test_callback_that_fails(board, said):
    """Each callback that raises is counted, and said once; others are called, training goes on."""
    heard = []

    @om.on_warning
    def fail(warning):
        raise KeyError(warning.rule)

    @om.on_warning
    def fail_too(warning):
        raise ValueError(warning.rule)

    om.on_warning(heard.append)
    for rules in (("A",), ("A", "B")):
        board(*rules)
        take_steps()

    assert [one.rule for one in heard] == ["A", "B"]
    assert said() == [
        "A holds. Act.",
        "on_warning(): test_callback_that_fails.<locals>.fail failed: KeyError: 'A'",
        "on_warning(): test_callback_that_fails.<locals>.fail_too failed: ValueError: A",
        "B holds. Act.",
    ]
    assert board.recording.word(Word.CALLBACK_ERRORS) == 4
    assert board.recording.word(Word.INTERNAL_ERRORS) == 0


def test_only_the_main_thread_is_told(board, said):
    """Steps of other threads tell nobody."""
    board("A")
    thread = threading.Thread(target=take_steps)
    thread.start()
    thread.join()
    before = said()
    take_steps()

    assert (before, said()) == ([], ["A holds. Act."])
