"""Rendering of styled lines for a terminal of given width, with or without colours and Unicode.

Control characters in texts from users' programs (section names, messages) are replaced, so that
they cannot control the terminal.
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
"""Default number of columns, used for pipes and files."""
NARROWEST = 70
"""Minimum number of columns; a narrower terminal wraps the lines itself."""
LABEL = 10
"""Number of columns of a line's label."""
_LONGEST = 400
"""Maximum columns of a text from a user's program, summed over its lines."""
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
"""Characters that control a terminal or change text direction, for brackets of an expression."""
_CONTROLS = re.compile(f"[{CONTROLS}]")
_ASCII = str.maketrans("▇·×…µ├└─│→–≤", "#-x~u|`-|>-<", "°")


def shown_in(stream: TextIO, environ: Mapping[str, str] = os.environ) -> tuple[bool, bool]:
    """Return whether to use colours in a stream, and whether its encoding supports Unicode."""
    color = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    try:
        "▇·×…µ├".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return color, False
    return color, True


def width_of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> int:
    """Return the columns of a stream: ``$COLUMNS``, else its terminal's, else ``WIDTH``.

    The result is at least ``NARROWEST``.
    """
    configured = environ.get("COLUMNS", "")
    width = int(configured) if configured.isdecimal() else 0
    if not width:
        try:
            width = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):  # not a terminal, or not a file
            width = 0
    return max(NARROWEST, width or WIDTH)


def text(lines: Iterable[Line], *, color: bool, unicode: bool) -> str:
    """Return the lines as one text, each ended by a line feed and without trailing blanks."""
    return "".join(_line(line, color, unicode) + "\n" for line in lines)


def short(raw: str, width: int) -> str:
    """Return ``raw`` as one printable line of at most ``width`` columns; ``…`` marks a cut."""
    # Must be made printable: escape sequences in a name would control the terminal.
    line = visible(" ".join(raw.split()))
    if columns(line) <= width:
        return line
    used = accumulate(map(columns, line))
    return line[: sum(1 for _ in takewhile(lambda upto: upto < width, used))] + "…"


def visible(raw: str) -> str:
    """Replace unprintable characters, such as control characters, with question marks."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in raw)


def uncontrolled(raw: str) -> str:
    """Replace control characters with question marks, for pages and files for other programs."""
    return _CONTROLS.sub("?", raw)


def left(raw: str, width: int) -> str:
    """Return ``raw`` left-aligned in exactly ``width`` columns; a longer text is cut."""
    cut = short(raw, width) if raw.strip() else raw[:width]
    return cut + " " * (width - columns(cut))


def place_text(file: str, line: int, room: int) -> str:
    """Return ``file:line``; if it exceeds ``room`` columns, without its first folders."""
    folders = f"{file.removeprefix(os.getcwd() + os.sep)}:{line}".split(os.sep)
    while len(folders) > 1 and len(os.sep.join(folders)) > room:
        folders.pop(0)
    return short(os.sep.join(folders), room)


def columns(line: str) -> int:
    """Return the number of columns of ``line`` in a terminal."""
    # Wide characters (e.g. Chinese) need two columns, and combining characters none.
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in line)
    marks = sum(unicodedata.combining(char) > 0 for char in line)
    return len(line) + wide - marks


def broken(raw: str, width: int) -> list[str]:
    """Wrap at most 400 columns of ``raw``, at blanks, into lines of ``width`` columns."""
    # Not at hyphens: the name of the command contains one. Lines are cut again after wrapping,
    # because textwrap does not consider characters of two columns.
    lines = textwrap.wrap(short(raw, _LONGEST), width, break_on_hyphens=False)
    return [short(part, width) for part in lines]


def wrapped(head: str, told: list[str], room: int, between: str = ", ") -> list[str]:
    """Wrap ``head``, followed by the texts in ``told``, into lines of ``room`` columns.

    Lines are wrapped only between two texts, so that a longer text is neither split nor cut.
    """
    lines = [head]
    for at, part in enumerate(told):
        more = part + (between if at < len(told) - 1 else "")
        if columns(lines[-1] + more.rstrip()) > room:
            lines.append("")
        lines[-1] += more
    return lines


def folded(line: Line, width: int, indent: str = "  ") -> list[Line]:
    """Wrap a styled line at ``width`` columns, but only between its parts, which are never cut."""
    lines: list[Line] = [[]]
    used = 0
    for part, style in line:
        is_first = used > 0 and used + columns(part) > width
        # Remove the separator at the start of a new line.
        shown = indent + part.lstrip(" ,·") if is_first else part
        if is_first:
            lines.append([])
            used = 0
        lines[-1].append((shown, style))
        used += columns(shown)
    return lines


def labelled(label: str, line: str) -> Line:
    """Return a line with a label in front, in a column of ``LABEL`` columns."""
    return labelled_lines(label, [line])[0]


def labelled_lines(label: str, lines: Iterable[str], style: Style = "") -> list[Line]:
    """Return lines of which the first has the label in front, and the others are indented."""
    words = chain([label], repeat(""))
    return [
        [(f"{word:<{LABEL}}", "dim"), (line, style)]
        for word, line in zip(words, lines, strict=False)
    ]


def bar(share: float, full: int = 20) -> str:
    """Return a bar of ``share * full`` characters, at least 1; empty for shares below 0.5 %."""
    return "▇" * (max(1, round(min(share, 1.0) * full)) if share >= 0.005 else 0)


def _line(line: Line, color: bool, unicode: bool) -> str:
    ends = [(part, style) for part, style in line if part]
    if ends:
        ends[-1] = (ends[-1][0].rstrip(), ends[-1][1])
    shown = [(visible(part), style) for part, style in ends]
    written = "".join(_painted(part, style) if color else part for part, style in shown)
    if unicode:
        return written
    # Symbols of this package become similar ASCII characters, all others question marks.
    return written.translate(_ASCII).encode("ascii", "replace").decode()


def _painted(part: str, style: Style) -> str:
    return f"\x1b[{_CODES[style]}m{part}\x1b[0m" if style and part.strip() else part
