"""Declaration of settings, and conversion of their values to the declared type.

Arguments, environment and YAML file give the same setting in different types, which are converted
to the same value.

The module also parses the setting with the default time limits (bounds) of requests, in seconds. It
is one limit for all requests (``0.05``), or limits by shell patterns of request names
(``predict=0.05,chat*=2``); the first pattern that matches a name applies.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from otel_mlperf.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def some_of(known: Sequence[str]) -> Callable[[Any], str]:
    """Return a parser of a list or comma-separated text of names in ``known``.

    The parser returns comma-separated names without duplicates, in the order of ``known``.
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
        variable: environment variable of the setting.
        default: default value; its type is the type of the setting.
        meaning: description for the user, in one sentence.
        *choices: valid values (default: any).
        low: minimum of a number.
        parse: conversion of a given value that replaces the type's default conversion.
        secret: whether the value is never shown, because it may contain a login or a key.
    """
    metadata = {
        "variable": variable, "meaning": meaning, "choices": choices, "low": low, "parse": parse,
        "secret": secret,
    }  # fmt: skip
    return field(default=default, metadata=metadata, repr=not secret)


def checked(item: Any, value: Any, where: str) -> Any:
    """Convert a value to the type of a field of ``Config`` and validate it; text is parsed.

    Args:
        item: the dataclass field, declared by ``set_by``.
        value: the given value.
        where: name of the value's source, for the error message.

    Raises:
        ConfigError: the value is invalid.
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


Bounds = tuple[tuple[str, float], ...]
_ALL = "*"


def bounds_text(given: Any) -> str:
    """Return time limits of requests in the text form of the setting.

    Args:
        given: text, one bound in seconds, or a mapping of name patterns to seconds.

    Raises:
        ConfigError: a bound is not a positive number.
    """
    if isinstance(given, Mapping):
        bounds = tuple((str(name), _seconds(bound)) for name, bound in given.items())
    elif isinstance(given, str):
        bounds = parse_bounds(given)
    else:
        bounds = ((_ALL, _seconds(given)),)
    return ",".join(f"{name}={bound:g}" if name != _ALL else f"{bound:g}" for name, bound in bounds)


def parse_bounds(text: str) -> Bounds:
    """Return pairs of name pattern and time limit in seconds, in the given order.

    Raises:
        ConfigError: a limit is not a positive number.
    """
    parts = [part.strip().rpartition("=") for part in text.split(",") if part.strip()]
    return tuple((name.strip() or _ALL, _seconds(bound)) for name, _, bound in parts)


def bound_of(bounds: Iterable[tuple[str, float]], name: str) -> float | None:
    """Return the time limit in seconds of requests named ``name``; None if no pattern matches."""
    from fnmatch import fnmatchcase  # imports regular expressions

    return next((bound for pattern, bound in bounds if fnmatchcase(name, pattern)), None)


def _seconds(given: Any) -> float:
    try:
        bound = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        bound = math.nan
    if not 0 < bound < math.inf:
        raise ConfigError(
            f"found {given!r:.40}, expected seconds, or patterns of names with seconds: "
            "predict=0.05,chat*=2"
        )
    return bound
