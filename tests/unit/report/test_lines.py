"""Does text fit the terminal that it goes to?"""

from __future__ import annotations

import io

import pytest

from otel_mlperf.report.lines import bar, columns, left, short, shown_in, text


class Terminal(io.TextIOWrapper):
    """A stream that says that it is a terminal."""

    def __init__(self, encoding, tty=True):
        super().__init__(io.BytesIO(), encoding=encoding)
        self._tty = tty

    def isatty(self):
        return self._tty


@pytest.mark.parametrize(
    ("encoding", "tty", "environ", "shown"),
    [
        ("utf-8", True, {}, (True, True)),
        ("utf-8", False, {}, (False, True)),
        ("utf-8", True, {"NO_COLOR": "1"}, (False, True)),
        ("utf-8", True, {"NO_COLOR": ""}, (True, True)),
        ("utf-8", True, {"TERM": "dumb"}, (False, True)),
        ("ascii", True, {}, (True, False)),
        ("latin-1", False, {}, (False, False)),
    ],
)
def test_colour_and_characters_are_decided_by_stream_and_environment(encoding, tty, environ, shown):
    """Plain when piped, by NO_COLOR and for a dumb terminal; ASCII where the encoding ends."""
    assert shown_in(Terminal(encoding, tty), environ) == shown


@pytest.mark.parametrize(
    ("raw", "cut"),
    [
        ("forward", "forward"),
        ("forward_backward", "forward_…"),
        ("a\n  b\tc", "a b c"),
        ("x\x1b[31m", "x?[31m"),
        ("模型模型模型", "模型模型…"),
    ],
)
def test_a_name_is_cut_to_columns_not_letters(raw, cut):
    """And made printable."""
    assert short(raw, 9) == cut


def test_a_text_as_long_as_a_book_is_cut():
    """In one pass: a message of megabytes takes no longer to cut than to read."""
    assert short("模" * 1_000_000, 10) == "模" * 4 + "…"


def test_a_padded_name_takes_exactly_its_columns():
    """Wide letters count twice, marks not at all."""
    assert [columns(left(raw, 8)) for raw in ("a", "模型", "e\u0301", "a long name", "")] == [8] * 5


def test_bars_grow_with_the_share():
    """Something always has a bar, nothing never."""
    assert [len(bar(share)) for share in (0, 0.004, 0.005, 0.05, 0.31, 1, 1.5)] == [
        0,
        0,
        1,
        1,
        6,
        20,
        20,
    ]


def test_lines_end_without_blanks_and_styles_go_around_their_parts():
    """A line of a table is not filled up to its width."""
    lines = [[("a  ", "red"), ("", "bold")], [("b", ""), ("  ", "dim")], []]

    assert text(lines, color=False, unicode=True) == "a\nb\n\n"
    assert text(lines, color=True, unicode=True) == "\x1b[31ma\x1b[0m\nb\n\n"


def test_a_letter_that_ascii_lacks_becomes_a_question_mark():
    """Our own signs have substitutes, other people's have none."""
    assert text([[("▇×µ é …", "")]], color=False, unicode=False) == "#xu ? ~\n"
