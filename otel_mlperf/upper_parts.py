"""Registry of functions of higher layers that lower layers call only if needed.

By default the training process loads neither analysis nor agent nor the OpenTelemetry SDK.
``otel_mlperf`` registers the module of each such function, and ``upper`` imports the module at the
first call.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, Literal

Name = Literal["join", "no_summary", "read_hot", "render_run", "run_in_thread", "watch_runs"]
_PLACES: Final[dict[str, str]] = {}


def register_upper(**places: str) -> None:
    """Register the modules of functions of higher layers, with the functions' names as keywords."""
    _PLACES.update(places)


def upper(name: Name) -> Any:
    """Import and return the registered function ``name``."""
    return getattr(importlib.import_module(_PLACES[name]), name)
