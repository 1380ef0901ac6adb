"""Functions of upper packages that lower ones call when a program asks for them.

The training process loads neither analysis nor agent nor the SDK by itself. ``otel_mlperf``
registers where each of these functions is, and ``upper`` loads it at its first call.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, Literal

Name = Literal["join", "no_summary", "read_hot", "render_run", "run_in_thread"]
_PLACES: Final[dict[str, str]] = {}


def register_upper(**places: str) -> None:
    """Note the module of each function, by the function's name."""
    _PLACES.update(places)


def upper(name: Name) -> Any:
    """Return the registered function of that name."""
    return getattr(importlib.import_module(_PLACES[name]), name)
