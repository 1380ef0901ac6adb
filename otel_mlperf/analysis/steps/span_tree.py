"""Tree of the spans of a step, with the self time of each span."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_shapes import Span
from otel_mlperf.intervals import CoveredTime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.analysis.profiles.section_operators import Operator

_Track = tuple[int, str, int | None]
_ROLL_UP = "rollup"


def draw_tree(
    rows: list[dict[str, Any]], under: Mapping[str, list[Operator]], begin_ns: int
) -> list[Span]:
    """Return the spans with their depths, parents before children.

    Args:
        rows: rows of table ``spans``, sorted by start.
        under: operators directly under a span, by span id.
        begin_ns: start of the step; start times of spans are relative to it.
    """
    ids = {row["span_id"] for row in rows}
    inside: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        # A span that is its own parent, or whose parent was lost, would never be reached: both
        # become roots.
        parent = row["parent_id"] if row["parent_id"] != row["span_id"] else ""
        inside.setdefault(parent if parent in ids else "", []).append(row)
    spans: list[Span] = []
    pending = [(row, 0, _track(row)) for row in reversed(inside.get("", []))]
    # A list, not recursion: programs may nest sections without limit.
    while pending:
        row, depth, track = pending.pop()
        below = inside.get(row["span_id"], [])
        pending += [(child, depth + 1, track) for child in reversed(below)]
        span = _span(row, below, depth, track, begin_ns)
        spans.append(msgspec.structs.replace(span, operators=under.get(row["span_id"], [])))
    return spans


def _span(
    row: dict[str, Any], below: list[dict[str, Any]], depth: int, track: _Track, begin: int
) -> Span:
    attributes = json.loads(row["attributes"] or "{}")
    return Span(
        name=row["name"],
        category=row["category"],
        depth=depth,
        span_id=row["span_id"],
        start_ns=row["start_ns"] - begin,
        duration_ns=attributes.get(names.ROLLED_UP_SUM, row["end_ns"] - row["start_ns"]),
        self_ns=_own_ns(row, below),
        thread=row["thread"],
        beside=_track(row) != track,
        is_error=row["status"] == "error",
        kind=row["kind"],
        attributes=attributes,
    )


def _track(row: dict[str, Any]) -> _Track:
    # Includes the native id: a forked child has the thread numbers and names of its parent.
    return row["track"], row["thread"], row["thread_id"]


def _own_ns(row: dict[str, Any], below: list[dict[str, Any]]) -> int:
    """Return a span's time in ns without its children on the same track.

    ``below`` contains all children, sorted by start.
    """
    own, cover = row["end_ns"] - row["start_ns"], CoveredTime(row["start_ns"])
    for child in below:
        if _track(child) != _track(row):
            continue
        # A roll-up also covers the gaps between its parts: only the parts' sum counts.
        if child["kind"] == _ROLL_UP:
            own -= json.loads(child["attributes"])[names.ROLLED_UP_SUM]
            continue
        cover.add(child["start_ns"], min(child["end_ns"], row["end_ns"]))
    return max(0, int(own) - cover.covered_ns)
