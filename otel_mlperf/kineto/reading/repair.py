"""Repair of entries that a strict decoder refuses or whose types do not match the format.

Values are parsed one JSON value at a time, in Python: numbers keep their text, and texts are
mended until they decode or no known error is left.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from otel_mlperf.kineto.reading.entries import ENTRY, Args, MemoryArgs

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_NUMBER: Final = 32
LONGEST_MENDED: Final = 1 << 16
"""Maximum number of characters to mend: mending restarts after each repair."""
_CUT_CHARACTERS: Final = 12
"""Errors this near to the end of a text may be caused by the text being cut there."""
_MOST_MENDS: Final = 100
_NAME: Final = re.compile(r'"name"\s*:\s*"')
_AFTER_NAME: Final = re.compile(r'"\s*(?:,\s*"(?:pid|tid|ts|dur|ph|cat|id|args|s|bp)"\s*:|\})')
_LONE_QUOTE: Final = re.compile(r'\\.|(")', re.S)
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_NOT_A_NUMBER: Final = re.compile(r"[-+]?(?:nan|inf(?:inity)?)\b", re.I)
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_NO_NUMBERS: Final = frozenset(("NaN", "Infinity", "-Infinity"))
_PHASES: Final = frozenset("XBEsfiMIbneSTptFCNODPRcVva(),")
_WHOLE_ARGS: Final = tuple(
    field.encode_name for kind in (Args, MemoryArgs) for field in msgspec.structs.fields(kind)
)


class Parsed(NamedTuple):
    """A parsed JSON value."""

    value: Any
    """The value; numbers with decimals, exponents or too many digits are texts."""
    end: int
    """Position at which its text ends; for mended text, in that text."""
    damage: dict[str, str]
    """The damage found: kinds, with an example of each."""


def parse_value(text: str, *, floats: Callable[[str], Any] = str, strict: bool = True) -> Parsed:
    """Parse the value that ``text`` starts with.

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
    """Return whether ``text`` may merely be too short."""
    return error.pos >= len(text) - _CUT_CHARACTERS or "Unterminated string" in error.msg


def mend_value(text: str, *, floats: Callable[[str], Any] = str) -> Parsed | None:
    """Return the value that all of ``text`` is meant to be; None if it cannot be mended.

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
    """Return ``text`` with one repair that explains the error; None without one."""
    place, around = error.pos, text[max(0, error.pos - 20) : error.pos + 40]
    if "control character" in error.msg and "unescaped_quote" in damage:
        return None  # The escaped quote was not part of a text: this text exceeds its line.
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


_COMPLETE: Final = "X"


def coerce_entry(value: Any, damage: dict[str, str]) -> Any:
    """Return an entry, the name of an unknown phase, or None if it is neither.

    Fields that do not fit are left out, and their kind is put into ``damage``.
    """
    if not isinstance(value, dict):
        damage["not_an_event"] = repr(value)[:40]
        return None
    if not value:
        return None  # XLA ends its list with an empty entry.
    phase = _phase(value, damage)
    if phase is None:
        return None
    if phase not in _PHASES:
        return clean_text(phase, damage)
    fields = {"ph": phase, "ts": value.get("ts"), "dur": value.get("dur")}
    if not _NO_NUMBERS.isdisjoint(map(str, fields.values())):
        damage.pop("not_a_number", None)  # It is counted as an invalid time instead.
    fields |= _of_types(value, ("name", "cat", "scope"), (str,), damage)
    fields |= _of_types(value, ("id2",), (dict,), damage)
    fields |= _of_types(value, ("pid", "tid", "id"), (int, str), damage)
    args = value.get("args")
    if isinstance(args, dict):
        named = (
            {"name": clean_text(args["name"], damage)} if isinstance(args.get("name"), str) else {}
        )
        fields["args"] = named | _of_types(args, _WHOLE_ARGS, (int, str), damage)
    elif args is not None:
        damage["wrong_type"] = f"args: {args!r:.40}"
    return msgspec.convert(fields, ENTRY)


def _phase(value: dict[str, Any], damage: dict[str, str]) -> str | None:
    """Return the ``ph`` of an entry, implied by start and duration if missing; else None."""
    phase = value.get("ph")
    if isinstance(phase, str):
        return phase
    damage["missing_field" if phase is None else "wrong_type"] = f"ph: {phase!r:.40}"
    is_complete = phase is None and None not in (value.get("ts"), value.get("dur"))
    return _COMPLETE if is_complete else None


def _of_types(
    value: dict[str, Any],
    names: tuple[str, ...],
    types: tuple[type, ...],
    damage: dict[str, str],
) -> dict[str, Any]:
    """Return the fields of these names that are of these types."""
    fields = {}
    for name in names:
        field = value.get(name)
        if isinstance(field, types) and not isinstance(field, bool):
            fields[name] = clean_text(field, damage) if isinstance(field, str) else field
        elif field is not None:
            damage["wrong_type"] = f"{name}: {field!r:.40}"
            if name in ("pid", "tid"):
                fields[name] = ""  # Present, so that it is not counted as missing as well.
    return fields


def clean_text(text: str, damage: dict[str, str]) -> str:
    """Return the text without halves of surrogate pairs, which UTF-8 cannot encode."""
    clean = _SURROGATE.sub("\ufffd", text)
    if clean != text and "invalid_utf8" not in damage:
        damage["lone_surrogate"] = clean[:40]
    return clean
