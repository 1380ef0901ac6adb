"""Levels: named sets of settings for spans, resource use, readings and the profiler.

A single setting that is given, wherever, overrides its level's.
"""

from __future__ import annotations

from typing import Any, Final

LEVELS: Final[dict[str, dict[str, Any]]] = {
    "off": {"disabled": True},
    "light": {
        "trace_first": 1,
        "trace_every": 1000,
        "readings_interval_ms": 15_000,
        "disabled_integrations": "dataloader",  # some 3 % of a step of 4 ms
    },
    "basic": {},
    "detailed": {
        "trace_first": 10,
        "trace_every": 50,
        "resource_categories": "step,data_loading,checkpoint",
        "gpu_time_categories": "transfer,forward,backward,optimizer,communication",
        "readings": "detailed",
    },
    "comprehensive": {
        "trace_first": 20,
        "trace_every": 10,
        "resource_categories": "all",
        "gpu_time_categories": "all",
        "readings": "comprehensive",
        "profile": "on",
    },
}
"""By level, the settings that differ from their defaults; ``basic`` is the defaults."""
