"""Text fits the terminal that it goes to."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios

import pytest

from otel_mlperf.terminal_lines import bar, columns, folded, left, short, shown_in, text, width_of


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


@pytest.fixture
def terminal():
    """A terminal of 132 columns, as the program in it sees it."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 132, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        yield stream
    os.close(ours)


def test_text_is_as_wide_as_its_terminal(terminal):
    """``COLUMNS`` says otherwise; below 70 the terminal breaks the lines itself."""
    assert width_of(terminal, {}) == 132
    assert width_of(terminal, {"COLUMNS": "100"}) == 100
    assert width_of(terminal, {"COLUMNS": "20"}) == 70
    assert width_of(terminal, {"COLUMNS": "wide"}) == 132


def test_what_is_no_terminal_has_eighty_columns(tmp_path):
    """A file, a pipe, a stream of a notebook."""
    with (tmp_path / "out").open("w") as file:
        assert [width_of(stream, {}) for stream in (file, io.StringIO())] == [80, 80]


def test_a_line_is_folded_between_its_parts_and_loses_none():
    """What stood between two of them goes; a part that is wider than all goes over the edge."""
    line = [("GPU busy 64 %", "bold"), (", idle 36 %", ""), (", communication 30 %", "")]

    assert text(folded(line, 80), color=False, unicode=True) == (
        "GPU busy 64 %, idle 36 %, communication 30 %\n"
    )
    assert text(folded(line, 25), color=False, unicode=True) == (
        "GPU busy 64 %, idle 36 %\n  communication 30 %\n"
    )
    assert text(folded(line, 5), color=False, unicode=True) == (
        "GPU busy 64 %\n  idle 36 %\n  communication 30 %\n"
    )


@pytest.mark.fault("S19")
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
