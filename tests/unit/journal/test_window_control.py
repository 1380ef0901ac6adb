"""A request for a profiler window is accepted once, and one that cannot be met is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_writer import Journal
from otel_mlperf.journal.layout import Word
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.journal.profiler_windows import (
    Answer,
    WindowControl,
    answer_word,
    is_stop,
    parse_answer,
    steps_of,
)

ASK = """
import pathlib, sys
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.profiler_windows import WindowControl
control = WindowControl(pathlib.Path(sys.argv[1]))
try:
    print(control.ask(int(sys.argv[2])) if sys.argv[2] != "stop" else control.stop())
except JournalError as error:
    print(error)
"""


@pytest.fixture
def journal(tmp_path):
    meta = JournalMeta(
        run_id="r", run_name="n", run_folder="/x", service="s", host="h", pid=1, run_span=7,
        monotonic_ns=5, unix_ns=9,
    )  # fmt: skip
    made = Journal(str(tmp_path / "0-1-1.journal"), 2048, meta)
    made.words[Word.LISTENS] = 1
    yield made
    made.release()


def ask(journal, steps=3):
    """A command in another process: the lock that shows who lives is the process's own."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, journal.path, str(steps)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def take(journal):
    journal.words[Word.TAKEN] = journal.words[Word.CONTROL]
    return journal.words[Word.TAKEN]


def test_request_arrives_with_its_steps(journal):
    """The word that the process reads says how many, and is none that came before."""
    request = int(ask(journal, 17))

    assert journal.words[Word.CONTROL] == request
    assert steps_of(request) == 17
    assert request != journal.words[Word.TAKEN]


def test_second_request_waits_for_the_first(journal):
    """While one is not taken, or its window is open, another is refused; afterwards it is not."""
    ask(journal)
    assert ask(journal) == (
        "requesting a profiler window from rank 0: another request, for 3 steps, is waiting for "
        "the next step; wait for this window, or end the window with --stop"
    )
    request = take(journal)
    assert "a window of 3 steps, requested earlier, is still open" in ask(journal)
    journal.words[Word.ANSWERED] = request

    assert ask(journal).isdecimal()


def test_open_window_is_told_to_end(journal):
    """The request to end it stands in the way of no answer; with no open window there is none."""
    assert ask(journal, "stop") == "None"
    ask(journal)
    assert ask(journal, "stop") == "None"  # not taken yet: it is withdrawn instead
    request = take(journal)

    assert int(ask(journal, "stop")) == request
    assert is_stop(journal.words[Word.CONTROL])
    journal.words[Word.CONTROL] = journal.words[Word.ANSWERED] = request
    assert ask(journal, "stop") == "None"


def test_process_that_does_not_look_is_not_asked(journal):
    """One that records with another version would never take it."""
    journal.words[Word.LISTENS] = 0

    assert "does not check for requests" in ask(journal)
    assert journal.words[Word.CONTROL] == 0


def test_run_that_has_ended_is_not_asked(journal):
    """Its journal says so."""
    journal.close()

    assert "the process has ended" in ask(journal)


def test_file_that_is_no_journal_is_named(tmp_path):
    """Empty, foreign, of an odd size or missing."""
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "b").write_bytes(bytes(9000))
    (tmp_path / "c").write_bytes(bytes(9001))
    for name in "abcd":
        with pytest.raises(JournalError, match=f"{tmp_path}/{name}"):
            WindowControl(tmp_path / name)


@given(st.sampled_from(Answer), st.integers(0, 1 << 40))
def test_answer_is_one_word(answer, number):
    """What became of a window, and its number, are stored at once."""
    word = answer_word(answer, number)

    assert parse_answer(word) == (answer, number)
    assert word < 1 << 64
