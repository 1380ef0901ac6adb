"""What of a value may be recorded as a number, without ever waiting for a GPU?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.core.faults import is_from_handler, say_once

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
    try:
        if isinstance(value, int | float):
            return float(value)
        if not hasattr(value, "is_cuda") and hasattr(value, "item"):  # NumPy's and its like
            return float(value.item())
    except OverflowError:
        say_once(f"{name} got an integer that no float can hold; left out")
        return math.nan
    except (TypeError, ValueError):  # several numbers, or none
        pass
    say_once(f"{name} got a {type(value).__name__}, plain numbers are expected; left out")
    return math.nan
