"""Default bounds of request durations, by patterns of request names.

They apply to requests that declare no bound themselves. Settings give one bound for all of them,
``0.05``, or bounds by shell patterns of their names, ``predict=0.05,chat*=2``. The first pattern
that matches counts. Bounds are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from otel_mlperf.errors import ConfigError

Bounds = tuple[tuple[str, float], ...]
_ALL = "*"


def bounds_text(given: Any) -> str:
    """Return the setting as text, given as text, a number, or a mapping of patterns.

    Raises:
        ConfigError: a time is invalid.
    """
    if isinstance(given, Mapping):
        bounds = tuple((str(name), _seconds(bound)) for name, bound in given.items())
    elif isinstance(given, str):
        bounds = parse_bounds(given)
    else:
        bounds = ((_ALL, _seconds(given)),)
    return ",".join(f"{name}={bound:g}" if name != _ALL else f"{bound:g}" for name, bound in bounds)


def parse_bounds(text: str) -> Bounds:
    """Parse patterns with their bounds, in order.

    Raises:
        ConfigError: a time is invalid.
    """
    parts = [part.strip().rpartition("=") for part in text.split(",") if part.strip()]
    return tuple((name.strip() or _ALL, _seconds(bound)) for name, _, bound in parts)


def bound_of(bounds: Iterable[tuple[str, float]], name: str) -> float | None:
    """Return the bound of requests of that name; None: they have none."""
    from fnmatch import fnmatchcase  # brings regular expressions along

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
