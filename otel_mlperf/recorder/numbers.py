"""What of a value may be recorded as a number, without ever waiting for a GPU?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.faults import is_from_handler, say_once

if TYPE_CHECKING:
    from collections.abc import Callable


def try_slowly(slowly: Callable[[Any], None], value: Any, error: Exception) -> None:
    """Tries the long way where the short one failed by ``error``.

    Raises:
        Exception: ``error`` itself, where a signal handler of the program raised it.
    """
    if is_from_handler(error):
        raise error
    slowly(value)


def plain_number(name: str, value: Any) -> float:
    """A plain number; nan for what would have to be fetched from a GPU, or is none."""
    if not isinstance(value, int | float):
        numpy_like = getattr(value, "item", None)
        if hasattr(value, "is_cuda") or numpy_like is None:
            say_once(f"{name} got a {type(value)}, plain numbers are expected; left out")
            return math.nan
        value = numpy_like()
    try:
        return float(value)
    except OverflowError:
        say_once(f"{name} got an integer that no float can hold; left out")
        return math.nan
