"""Completeness of profiler windows: missing data of a window, and steps that only other ranks have.

The table ``completeness`` contains what a window lacks by itself. Ranks profile the same steps:
windows belong together if they have the same number and a step in common. Imported windows have no
number. Steps that another rank has and this one lacks are a loss of its window: sums over ranks
lack them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import asdict, replace

from otel_mlperf.store.window_facts import Loss, WindowCompleteness

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.profiles.window_shapes import WindowFacts
    from otel_mlperf.tables.window_tables import CompletenessRow

RANK_STEP: Final = "rank_step"
_MOST_NAMES: Final = 3


def read_completeness(rows: Iterable[CompletenessRow]) -> dict[str, WindowCompleteness]:
    """Return the completeness of each window, by the digest of its trace."""
    return {
        row.digest: msgspec.convert(
            asdict(row) | {"losses": json.loads(row.losses), "whole": json.loads(row.whole)},
            WindowCompleteness,
        )
        for row in rows
    }


def is_complete(windows: Sequence[WindowFacts]) -> bool:
    """Return whether no window is known to lack data."""
    return all(window.completeness is None or window.completeness.is_complete for window in windows)


def beside_other_ranks(
    windows: Sequence[WindowFacts], numbers: Sequence[int | None]
) -> list[WindowFacts]:
    """Add missing steps to the windows' losses; ``numbers`` are theirs, None for imported ones."""
    told = []
    for window, number in zip(windows, numbers, strict=True):
        same = [
            other
            for other, its in zip(windows, numbers, strict=True)
            if its == number and other.restart == window.restart
        ]
        told.append(_beside(window, same))
    return told


def _beside(window: WindowFacts, same: Sequence[WindowFacts]) -> WindowFacts:
    own = {step for other in same if other.rank == window.rank for step in other.steps}
    others = [
        other
        for other in same
        if other.rank != window.rank and set(other.steps) & set(window.steps)
    ]
    lacks = list(dict.fromkeys(step for other in others for step in other.steps if step not in own))
    known = window.completeness
    if not lacks or known is None:
        return window
    return replace(window, completeness=_without_steps(window, known, lacks, others))


def _without_steps(
    window: WindowFacts,
    known: WindowCompleteness,
    lacks: list[str],
    others: Sequence[WindowFacts],
) -> WindowCompleteness:
    of = len(window.steps) + len(lacks)
    named = ", ".join(lacks[:_MOST_NAMES]) + (", …" if len(lacks) > _MOST_NAMES else "")
    rank = min(other.rank for other in others if set(lacks) & set(other.steps))
    what = f"{named}, which rank {rank} has"
    loss = Loss(
        kind=RANK_STEP,
        missing=len(lacks),
        of=of,
        start_ns=window.start_ns,
        end_ns=window.start_ns + window.duration_ns,
        what=what,
        words=f"{len(lacks)} of {of} steps are not in the window of rank {window.rank}: {what}",
    )
    ratio = min(known.ratio, 1 - len(lacks) / of)
    return replace(known, ratio=ratio, is_complete=False, losses=[*known.losses, loss])
