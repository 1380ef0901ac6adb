"""Repair of entries that a strict decoder rejects or whose types do not match the format.

JSON values are parsed one at a time, in Python. Numbers with decimals remain text. Invalid text is
repaired error by error, until it can be parsed or an error is unknown.
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
"""Maximum number of characters of a repairable text, because parsing restarts after each repair."""
_CUT_CHARACTERS: Final = 12
"""An error within this distance of a text's end may only mean that the text is cut off."""
_MAX_REPAIRS: Final = 100
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
    """The value, in which numbers with decimals, exponents or too many digits are text."""
    end: int
    """Position after the value in ``text`` or, after repairs, in the repaired text."""
    damage: dict[str, str]
    """Example of each kind of damage that was found."""


def parse_value(text: str, *, floats: Callable[[str], Any] = str, strict: bool = True) -> Parsed:
    """Parse the JSON value at the start of ``text``; ``floats`` converts decimals.

    Unless ``strict``, strings may contain control characters.

    Raises:
        json.JSONDecodeError: the value is invalid or incomplete.
        RecursionError: the value is nested too deeply.
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
    """Return whether ``error`` might only mean that ``text`` is cut off."""
    return error.pos >= len(text) - _CUT_CHARACTERS or "Unterminated string" in error.msg


def mend_value(text: str, *, floats: Callable[[str], Any] = str) -> Parsed | None:
    """Repair and parse the whole ``text`` as one value; return None if it cannot be repaired.

    Raises:
        RecursionError: the value is nested too deeply.
    """
    damage: dict[str, str] = {}
    for _ in range(_MAX_REPAIRS):
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
    place, around = error.pos, text[max(0, error.pos - 20) : error.pos + 40]
    if "control character" in error.msg and "unescaped_quote" in damage:
        return None  # An earlier repair was wrong: the string would continue on the next line.
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
    """Return ``value`` as an entry; if its phase is unknown, the phase; if it has none, None.

    Fields with unsuitable types are left out and logged in ``damage``.
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
    fields = {}
    for name in names:
        field = value.get(name)
        if isinstance(field, types) and not isinstance(field, bool):
            fields[name] = clean_text(field, damage) if isinstance(field, str) else field
        elif field is not None:
            damage["wrong_type"] = f"{name}: {field!r:.40}"
            if name in ("pid", "tid"):
                fields[name] = ""  # Otherwise it would also be logged as missing.
    return fields


def clean_text(text: str, damage: dict[str, str]) -> str:
    """Return ``text`` with lone surrogates, which UTF-8 cannot encode, replaced and logged."""
    clean = _SURROGATE.sub("\ufffd", text)
    if clean != text and "invalid_utf8" not in damage:
        damage["lone_surrogate"] = clean[:40]
    return clean
