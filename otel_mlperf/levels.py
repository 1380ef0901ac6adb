"""Levels: named sets of settings for spans, resource use, readings and the profiler.

A single setting that is given, wherever, overrides its level's.
"""

from __future__ import annotations

from typing import Any, Final

LEVELS: Final[dict[str, dict[str, Any]]] = {
    "off": {"disabled": True},
    "light": {
        "first_steps": 1,
        "keep_every": 1000,
        "readings_interval_ms": 15_000,
        "integrations_off": "dataloader",  # some 3 % of a step of 4 ms
    },
    "basic": {},
    "detailed": {
        "first_steps": 10,
        "keep_every": 50,
        "resources_of": "step,data_loading,checkpoint",
        "gpu_time_of": "transfer,forward,backward,optimizer,communication",
        "readings": "detailed",
    },
    "comprehensive": {
        "first_steps": 20,
        "keep_every": 10,
        "resources_of": "all",
        "gpu_time_of": "all",
        "readings": "comprehensive",
        "profile": "on",
    },
}
"""By level, the settings that differ from their defaults; ``basic`` is the defaults."""
