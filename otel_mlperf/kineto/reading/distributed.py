"""Which rank of how many wrote a trace?"""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Distributed(NamedTuple):
    """What a trace says about the job that it is part of."""

    rank: int | None
    world_size: int | None
    backend: str


def find_distributed(values: dict[str, Any]) -> Distributed:
    """From ``distributedInfo``, where it is an object or the text of one, or beside it."""
    info = values.get("distributedInfo")
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except ValueError:
            info = None
    places = [place for place in (info, values) if isinstance(place, dict)]
    backends = [place["backend"] for place in places if isinstance(place.get("backend"), str)]
    return Distributed(
        _number(places, "rank"), _number(places, "world_size"), backends[0] if backends else ""
    )


def _number(places: list[dict[str, Any]], name: str) -> int | None:
    for place in places:
        value = str(place.get(name))
        if value.isdecimal() and len(value) < 10:
            return int(value)
    return None
