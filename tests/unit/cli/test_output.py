"""Text in a name can neither control the terminal nor reverse the text next to it."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from otel_mlperf.cli.output import echo, to_json, warn
from otel_mlperf.terminal_lines import text

BAD = "\x1b]0;owned\x07\x9b2J\u202etxt.exe\u2066\u061c\u200f\x7f\u2028\ufeff\U000e0041"
NAMES = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(BAD), max_size=40)


def is_harmless(shown: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in shown)


@given(name=NAMES, key=NAMES)
@example(name=BAD, key=BAD)
def test_json_escapes_what_no_terminal_shows(name, key):
    """It says the same to a program, and nothing to a terminal."""
    written = to_json({"name": name, key: [name]})

    assert json.loads(written) == {"name": name, key: [name]}
    hidden = [char for char in written if not char.isprintable() and char != "\n"]
    assert not [char for char in hidden if char in BAD or ord(char) < 0xA0]


@given(name=NAMES, color=st.booleans(), unicode=st.booleans())
@example(name=BAD, color=True, unicode=True)
def test_text_shows_a_question_mark_instead(name, color, unicode):
    """Whatever drew the line; only our own colours are commands."""
    drawn = text([[(name, ""), (name, "red")]], color=color, unicode=unicode)

    assert is_harmless(drawn.replace("\x1b[31m", "").replace("\x1b[0m", ""))


def test_messages_are_harmless(capsys):
    """Those on standard output as those on standard error, which name files and servers."""
    echo(f"written to {BAD}")
    warn(f"reading {BAD}")
    said = capsys.readouterr()

    assert is_harmless(said.out)
    assert is_harmless(said.err)
    assert said.err.startswith("otel-mlperf: reading ?]0;owned??2J?txt.exe")
