"""Styled lines as text for a terminal of a given width, with or without colours and Unicode.

Text from programs (section names, messages) is made printable first: it must not move the cursor.
"""

from __future__ import annotations

import os
import re
import textwrap
import unicodedata
from itertools import accumulate, chain, repeat, takewhile
from typing import TYPE_CHECKING, Final, Literal, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Style = Literal["", "bold", "dim", "red", "green", "yellow", "blue", "magenta", "cyan"]
Line = list[tuple[str, Style]]

WIDTH = 80
"""Columns where nobody says how many there are: in a pipe or a file."""
NARROWEST = 70
"""A terminal with fewer columns breaks the lines itself."""
LABEL = 10
"""Columns of the word in front of a line."""
_LONGEST = 400
"""Columns of what anybody wrote, on all its lines together."""
_CODES = {
    "bold": 1,
    "dim": 2,
    "red": 31,
    "green": 32,
    "yellow": 33,
    "blue": 34,
    "magenta": 35,
    "cyan": 36,
}
CONTROLS: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
)
"""Characters that command a terminal or turn the direction of text, for a regular expression."""
_CONTROLS = re.compile(f"[{CONTROLS}]")
_ASCII = str.maketrans("▇·×…µ├└─│→–≤", "#-x~u|`-|>-<", "°")


def shown_in(stream: TextIO, environ: Mapping[str, str] = os.environ) -> tuple[bool, bool]:
    """Whether a stream gets colours, and whether it can take more than ASCII."""
    color = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    try:
        "▇·×…µ├".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return color, False
    return color, True


def width_of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> int:
    """How many columns a stream has: as ``COLUMNS`` says, else its terminal, else ``WIDTH``."""
    told = environ.get("COLUMNS", "")
    width = int(told) if told.isdecimal() else 0
    if not width:
        try:
            width = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):  # no terminal, or no file at all
            width = 0
    return max(NARROWEST, width or WIDTH)


def text(lines: Iterable[Line], *, color: bool, unicode: bool) -> str:
    """The lines as one text, each ended by a line feed and without blanks at its end."""
    return "".join(_line(line, color, unicode) + "\n" for line in lines)


def short(raw: str, width: int) -> str:
    """``raw`` on one line, printable, in at most ``width`` columns; a cut is marked."""
    # A name may hold escape sequences: printed as they are they would command the terminal.
    line = visible(" ".join(raw.split()))
    if columns(line) <= width:
        return line
    used = accumulate(map(columns, line))
    return line[: sum(1 for _ in takewhile(lambda upto: upto < width, used))] + "…"


def visible(raw: str) -> str:
    """``raw`` with a question mark for what a terminal would obey instead of showing it."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in raw)


def uncontrolled(raw: str) -> str:
    """``raw`` with a question mark for control characters, for pages and files of others."""
    return _CONTROLS.sub("?", raw)


def left(raw: str, width: int) -> str:
    """``raw`` in exactly ``width`` columns."""
    cut = short(raw, width) if raw.strip() else raw[:width]
    return cut + " " * (width - columns(cut))


def place_text(file: str, line: int, room: int) -> str:
    """A line of a file; of a long path the end, which tells more than its beginning."""
    folders = f"{file.removeprefix(os.getcwd() + os.sep)}:{line}".split(os.sep)
    while len(folders) > 1 and len(os.sep.join(folders)) > room:
        folders.pop(0)
    return short(os.sep.join(folders), room)


def columns(line: str) -> int:
    """How many columns a terminal takes for ``line``."""
    # Chinese takes two columns a character, and an accent set on top of one none.
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in line)
    marks = sum(unicodedata.combining(char) > 0 for char in line)
    return len(line) + wide - marks


def broken(raw: str, width: int) -> list[str]:
    """``raw`` on as many lines as it needs, broken at blanks; more than a few lines are cut."""
    # Anybody's words: what is far too long is cut before it is broken, and a line that is still too
    # wide, as wide characters make it, after it.
    return [short(part, width) for part in textwrap.wrap(short(raw, _LONGEST), width)]


def wrapped(head: str, told: list[str], room: int, between: str = ", ") -> list[str]:
    """``head`` and the parts behind it on lines of ``room`` columns; none is cut."""
    lines = [head]
    for at, part in enumerate(told):
        more = part + (between if at < len(told) - 1 else "")
        if columns(lines[-1] + more.rstrip()) > room:
            lines.append("")
        lines[-1] += more
    return lines


def folded(line: Line, width: int, indent: str = "  ") -> list[Line]:
    """A line on as many as it needs, broken between its parts; none is dropped."""
    lines: list[Line] = [[]]
    used = 0
    for part, style in line:
        is_first = used > 0 and used + columns(part) > width
        # What stands between two parts belongs to neither.
        shown = indent + part.lstrip(" ,·") if is_first else part
        if is_first:
            lines.append([])
            used = 0
        lines[-1].append((shown, style))
        used += columns(shown)
    return lines


def labelled(label: str, line: str) -> Line:
    """A line behind the word that says what it is about."""
    return labelled_lines(label, [line])[0]


def labelled_lines(label: str, lines: Iterable[str], style: Style = "") -> list[Line]:
    """Lines about one thing: the word stands in front of the first alone."""
    words = chain([label], repeat(""))
    return [
        [(f"{word:<{LABEL}}", "dim"), (line, style)]
        for word, line in zip(words, lines, strict=False)
    ]


def bar(share: float, full: int = 20) -> str:
    """A bar of ``full`` characters for all of it; something never has no bar at all."""
    return "▇" * (max(1, round(min(share, 1.0) * full)) if share >= 0.005 else 0)


def _line(line: Line, color: bool, unicode: bool) -> str:
    ends = [(part, style) for part, style in line if part]
    if ends:
        ends[-1] = (ends[-1][0].rstrip(), ends[-1][1])
    shown = [(visible(part), style) for part, style in ends]
    written = "".join(_painted(part, style) if color else part for part, style in shown)
    if unicode:
        return written
    # Ours by their likes first; what a program wrote besides becomes a question mark.
    return written.translate(_ASCII).encode("ascii", "replace").decode()


def _painted(part: str, style: Style) -> str:
    return f"\x1b[{_CODES[style]}m{part}\x1b[0m" if style and part.strip() else part
