"""Profiler windows of a run: stored, pending or left out, and the completeness of the stored ones.

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

from otel_mlperf import names
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.profiler_windows import FOLDER, WINDOW_SUFFIX, read_window
from otel_mlperf.store.window_facts import Loss, UnknownRows, WindowCompleteness

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.profiles.window_shapes import WindowFacts
    from otel_mlperf.store.run_folders import RunFolder
    from otel_mlperf.store.table_reader import Store
    from otel_mlperf.tables.window_tables import CompletenessRow


REMEDIES: Final = {
    "another profiler was running": "run one profiler at a time, or attach om.trace_handler() to "
    "the program's own profiler",
    "the program had not imported torch": "import torch before the window starts",
    "earlier windows have increased the process memory too much": "record fewer or shorter windows",
    "CUDA graphs crash under a profiler with CUDA before 12.6": "use CUDA 12.6 or later",
    "the trace could not be recorded or written": "see the program's stderr",
    "the run or block ended before the first step of the window": "start the window earlier "
    "(smaller wait); count steps instead of epochs if the steps have no epoch",
}
"""Remedy for each reason for which windows are left out."""
_METRICS: Final = (
    names.SKIPPED_BUSY,
    names.SKIPPED_NO_TORCH,
    names.SKIPPED_MEMORY,
    names.SKIPPED_CUDA_GRAPHS,
    names.SKIPPED_FAILED,
    names.SKIPPED_NOT_REACHED,
)


def find_unread(run: RunFolder, store: Store, rank: int | None = None) -> list[str]:
    """Return the names of traces that processes have finished and no table contains yet."""
    # The name of a trace alone is not unique: two ranks may use the same name.
    known = {tuple(row) for row in store.rows("SELECT rank, restart, trace FROM windows")}
    unread = []
    for path in sorted((run.path / FOLDER).glob(f"*{WINDOW_SUFFIX}")):
        try:
            window = read_window(path)
        except JournalError:
            continue  # it cannot be read, and the agent's log reports that
        is_known = (window.rank, window.restart, window.trace) in known
        if not is_known and rank in (None, window.rank):
            unread.append(window.trace)
    return unread


def read_unknown_rows(store: Store) -> list[UnknownRows]:
    """Return unidentified timeline rows of all windows, which may belong to a device."""
    texts = store.rows("SELECT unknown_rows FROM windows WHERE unknown_rows IS NOT NULL")
    return [rows for (text,) in texts for rows in msgspec.json.decode(text, type=list[UnknownRows])]


def read_left_out(store: Store) -> dict[str, int]:
    """Return the number of windows left out on all ranks, by reason."""
    rows = store.rows(
        "SELECT name, sum(last)::BIGINT FROM (SELECT name, arg_max(value, time_ns) AS last "
        "FROM readings WHERE list_contains($names, name) GROUP BY name, rank, restart, labels) "
        "GROUP BY name ORDER BY sum(last) DESC, name",
        names=[metric.name for metric in _METRICS],
    )
    reasons = {metric.name: why for metric, why in zip(_METRICS, REMEDIES, strict=True)}
    return {reasons[name]: count for name, count in rows if count}


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
    what = f"{named}, which rank {rank} recorded"
    loss = Loss(
        kind=RANK_STEP,
        missing=len(lacks),
        of=of,
        start_ns=window.start_ns,
        end_ns=window.start_ns + window.duration_ns,
        what=what,
        words=f"{len(lacks)} of {of} steps are missing in the window of rank {window.rank}: {what}",
    )
    ratio = min(known.ratio, 1 - len(lacks) / of)
    return replace(known, ratio=ratio, is_complete=False, losses=[*known.losses, loss])
