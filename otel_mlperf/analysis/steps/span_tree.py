"""Tree of the spans of a step, with the own time of each span."""

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
    """The spans, parents before their children.

    Args:
        rows: of table ``spans``, by start.
        under: span id to the operators directly under it.
        begin_ns: when the step began, from which their starts count.
    """
    ids = {row["span_id"] for row in rows}
    inside: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        # What names itself as its parent would never be reached, and what lost its parent neither:
        # both hang at the top.
        parent = row["parent_id"] if row["parent_id"] != row["span_id"] else ""
        inside.setdefault(parent if parent in ids else "", []).append(row)
    spans: list[Span] = []
    pending = [(row, 0, _track(row)) for row in reversed(inside.get("", []))]
    # By a list and not by recursion: sections nest as deep as a program likes.
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
    # The native id as well: a forked child numbers and names its threads as its parent does.
    return row["track"], row["thread"], row["thread_id"]


def _own_ns(row: dict[str, Any], below: list[dict[str, Any]]) -> int:
    """The span's time minus the union of its children on the same track, which come by start."""
    own, cover = row["end_ns"] - row["start_ns"], CoveredTime(row["start_ns"])
    for child in below:
        if _track(child) != _track(row):
            continue
        # A roll-up covers gaps between its parts, too: only their sum was spent in it.
        if child["kind"] == _ROLL_UP:
            own -= json.loads(child["attributes"])[names.ROLLED_UP_SUM]
            continue
        cover.add(child["start_ns"], min(child["end_ns"], row["end_ns"]))
    return max(0, int(own) - cover.covered_ns)
