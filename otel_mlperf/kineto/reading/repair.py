"""What does an entry say that a strict decoder refuses?

One JSON value at a time, in Python: numbers keep their text, and texts are mended until they decode
or nothing known is wrong with them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_NUMBER: Final = 32
LONGEST_MENDED: Final = 1 << 16
"""Characters: mending begins anew after each thing that it puts right."""
_CUT_CHARACTERS: Final = 12
"""Errors this near to the end of a text may be due to the text being cut there."""
_MOST_MENDS: Final = 100
_NAME: Final = re.compile(r'"name"\s*:\s*"')
_AFTER_NAME: Final = re.compile(r'"\s*(?:,\s*"(?:pid|tid|ts|dur|ph|cat|id|args|s|bp)"\s*:|\})')
_LONE_QUOTE: Final = re.compile(r'\\.|(")', re.S)
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_NOT_A_NUMBER: Final = re.compile(r"[-+]?(?:nan|inf(?:inity)?)\b", re.I)


class Parsed(NamedTuple):
    """A JSON value."""

    value: Any
    """Numbers with decimals, exponents or too many digits are texts."""
    end: int
    """Where its text ends; of mended text."""
    damage: dict[str, str]
    """What was wrong with it: kinds, with an example of each."""


def parse_value(text: str, *, floats: Callable[[str], Any] = str, strict: bool = True) -> Parsed:
    """The value that ``text`` begins with.

    Raises:
        json.JSONDecodeError: it is not JSON, or not all of it is there.
        RecursionError: it is nested too deep.
    """
    damage: dict[str, str] = {}

    def constant(name: str) -> str:
        damage["not_a_number"] = name
        return name

    decoder = json.JSONDecoder(
        parse_float=floats, parse_int=_whole, parse_constant=constant, strict=strict
    )
    value, end = decoder.raw_decode(text)
    return Parsed(value, end, damage)


def is_cut(error: json.JSONDecodeError, text: str) -> bool:
    """Whether ``text`` may merely be too short."""
    return error.pos >= len(text) - _CUT_CHARACTERS or "Unterminated string" in error.msg


def mend_value(text: str, *, floats: Callable[[str], Any] = str) -> Parsed | None:
    """The value that all of ``text`` is meant to be; None if it cannot be told.

    Raises:
        RecursionError: it is nested too deep.
    """
    damage: dict[str, str] = {}
    for _ in range(_MOST_MENDS):
        try:
            strict = "control_character" not in damage
            parsed = parse_value(text, floats=floats, strict=strict)
        except json.JSONDecodeError as error:
            if len(text) > LONGEST_MENDED:
                return None
            mended = _mended(text, error, damage)
            if mended is None:
                return None
            text = mended
            continue
        if text[parsed.end :].strip(" \t\r\n,"):
            return None
        return parsed._replace(damage=damage | parsed.damage)
    return None


def _whole(text: str) -> int | str:
    return int(text) if len(text) <= LONGEST_NUMBER else text


def _mended(text: str, error: json.JSONDecodeError, damage: dict[str, str]) -> str | None:
    """``text`` with one thing put right that explains the error; None if nothing does."""
    place, around = error.pos, text[max(0, error.pos - 20) : error.pos + 40]
    if "control character" in error.msg and "unescaped_quote" in damage:
        return None  # What was escaped was no part of a text: this one goes beyond its line.
    if "control character" in error.msg:
        damage["control_character"] = around
        return text
    if "escape" in error.msg:
        damage["bad_escape"] = around
        doubled = _ESCAPE.sub(lambda match: match[0] if len(match[0]) > 1 else r"\\", text)
        return doubled if doubled != text else None
    number = _NOT_A_NUMBER.match(text, place)
    if number:
        damage["not_a_number"] = number[0]
        return text[:place] + "null" + text[number.end() :]
    mended = _with_escaped_quotes(text, place)
    if mended is not None:
        damage["unescaped_quote"] = around
    return mended


def _with_escaped_quotes(text: str, place: int) -> str | None:
    named = _NAME.search(text)
    after = _AFTER_NAME.search(text, named.end()) if named else None
    if named and after:
        name = text[named.end() : after.start()]
        escaped = _LONE_QUOTE.sub(lambda match: r"\"" if match[1] else match[0], name)
        if escaped != name:
            return text[: named.end()] + escaped + text[after.start() :]
    before = text[:place].rstrip()
    if before.endswith('"') and text[place : place + 1] != '"':
        return before[:-1] + r"\"" + text[len(before) :]
    return None
