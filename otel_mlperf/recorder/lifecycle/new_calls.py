"""How long did the calls take whose rows no agent has added up yet?

There may be thousands of them. Where the program has loaded NumPy, as trainings have, they are
gone through column by column, which takes a third of the time; else row by row.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from otel_mlperf.journal.layout import ROW, ROW_BYTES, Flag, Kind
from otel_mlperf.journal.section_sums import Inside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.journal.section_sums import NewCalls
    from otel_mlperf.recorder.lifecycle.stats_source import Known

_SECTION, _BEGIN, _CANCEL = int(Kind.SECTION), int(Kind.BEGIN), int(Kind.CANCEL)
_PAUSE = int(Flag.PAUSE)
_FEW = 400 * ROW_BYTES
"""Bytes of so few rows that columns would not be faster."""


def new_calls(
    known: Known, after: int, modules: Mapping[str, Any] = sys.modules
) -> dict[int, NewCalls]:
    """The calls in the rows behind slot ``after``, by the number of their name."""
    # A copy: after the end it is asked again.
    inside = Inside() if known.published is None else known.published.inside.copy()
    if len(known.rows) < _FEW or not _is_loaded(modules.get("numpy")):
        return by_row(known.rows, inside, after)
    # By name: what loads NumPy is nothing that the recorder may load by itself.
    columns = importlib.import_module("otel_mlperf.journal.row_sums")
    found: dict[int, NewCalls] = columns.new_calls(known.rows, inside, after)
    return found


def _is_loaded(module: Any) -> bool:
    """Whether it is there as a whole, not just being loaded by another thread."""
    spec = getattr(module, "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def by_row(rows: bytes, inside: Inside, after: int) -> dict[int, NewCalls]:
    """The calls in the rows behind slot ``after``; those before it may be inside of these."""
    took = inside.by_section
    calls: dict[int, tuple[list[int], list[int]]] = {}
    for start, end, span, parent, _, track, name, flags, slot in ROW.iter_unpack(rows):
        kind = flags & 15
        if kind == _SECTION:
            duration = end - start
            own = duration - inside.held(track, start, end) - inside.take(span, track)
            if flags & _PAUSE:
                inside.pause(track, start, end)
            if not parent:
                parent = inside.around(span, 0)  # noqa: PLW2901 - a step's row does not say it
            around = took.setdefault(parent, {})
            around[track] = around.get(track, 0) + duration
            if slot > after:
                of = calls.get(name) or calls.setdefault(name, ([], []))
                of[0].append(duration)
                of[1].append(max(own, 0))
        elif kind == _BEGIN:
            inside.begin(span, parent)
        elif kind == _CANCEL:  # it never was: what was inside was inside what is around
            inside.move(span, inside.around(span, parent))
    return {name: (sum(of), sum(own), min(of), max(of), of) for name, (of, own) in calls.items()}
