"""Declaration of a setting, and the conversion of given text or numbers to its type.

Arguments, environment and YAML file give the same setting in different types. This module makes
them agree.
"""

from __future__ import annotations

import math
import os
from dataclasses import field
from typing import TYPE_CHECKING, Any

from otel_mlperf.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def some_of(known: Sequence[str]) -> Callable[[Any], str]:
    """Return a parser of a list or comma-separated text of ``known`` names.

    Its result contains each name once and in one order, separated by commas.
    """

    def parse(given: Any) -> str:
        listed = given.split(",") if isinstance(given, str) else list(given)
        wanted = {word.strip() for word in listed} - {""}
        if unknown := wanted.difference(known):
            raise ConfigError(f"found {min(unknown)!r}, expected some of {', '.join(known)}")
        return ",".join(name for name in known if name in wanted)

    return parse


def set_by(
    variable: str,
    default: Any,
    meaning: str,
    *choices: str,
    low: float = 0,
    parse: Callable[[Any], Any] | None = None,
    secret: bool = False,
) -> Any:
    """Declare a field of ``Config``.

    Args:
        variable: the environment variable that sets it too.
        default: its value if it is not set; its type is the setting's.
        meaning: one sentence for the user.
        *choices: the only values that it may have.
        low: the minimum of a number.
        parse: converts the given value, in place of the type's own conversion.
        secret: whether its value, which may contain a login or a key, is never shown.
    """
    metadata = {
        "variable": variable, "meaning": meaning, "choices": choices, "low": low, "parse": parse,
        "secret": secret,
    }  # fmt: skip
    return field(default=default, metadata=metadata, repr=not secret)


def checked(item: Any, value: Any, where: str) -> Any:
    """Convert ``value`` to the field's type; text is parsed, so that all sources agree.

    Raises:
        ConfigError: it is invalid; names ``where`` it was given, and what was expected.
    """
    kind, low, choices = type(item.default), item.metadata["low"], item.metadata["choices"]
    try:
        parsed = (item.metadata["parse"] or _PARSE[kind])(value)
        if choices and parsed not in choices:
            raise ValueError
        if kind in (int, float) and not low <= parsed < math.inf:
            raise ValueError
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except (ValueError, TypeError, OverflowError, AttributeError):
        wanted = " or ".join(map(repr, choices)) or _WANTED[kind].format(low=f"{low:g}")
        shown = f"a {type(value).__name__}" if item.metadata["secret"] else repr(value)
        raise ConfigError(f"{where}: found {shown}, expected {wanted}") from None
    return parsed


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ValueError
    return text in _TRUE


def _parse_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _parse_float(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _parse_str(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError
    return os.fspath(value)


_PARSE: dict[type, Any] = {
    bool: _parse_bool,
    int: _parse_int,
    float: _parse_float,
    str: _parse_str,
}
_WANTED = {
    bool: "true or false",
    int: "a whole number of at least {low}",
    float: "a number of at least {low}",
    str: "text",
}
