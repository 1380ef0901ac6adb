"""Profiler windows of a run: stored, pending or left out, and the completeness of the stored ones.

The table ``completeness`` contains the losses within each window. In addition, windows of different
ranks are compared if they have the same number and a step in common. (Imported windows have no
number.) A step that is in another rank's window, but not in the rank's own window, counts as a loss
of the own window, because sums over ranks lack the step on this rank.
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
"""Remedy for each reason why a window was not recorded."""
_METRICS: Final = (
    names.SKIPPED_BUSY,
    names.SKIPPED_NO_TORCH,
    names.SKIPPED_MEMORY,
    names.SKIPPED_CUDA_GRAPHS,
    names.SKIPPED_FAILED,
    names.SKIPPED_NOT_REACHED,
)


def find_unread(run: RunFolder, store: Store, rank: int | None = None) -> list[str]:
    """Return the file names of finished traces that have not been read into the tables yet."""
    # The name of a trace alone is not unique: two ranks may use the same name.
    known = {tuple(row) for row in store.rows("SELECT rank, restart, trace FROM windows")}
    unread = []
    for path in sorted((run.path / FOLDER).glob(f"*{WINDOW_SUFFIX}")):
        try:
            window = read_window(path)
        except JournalError:
            continue  # the agent logs that the file is not readable
        is_known = (window.rank, window.restart, window.trace) in known
        if not is_known and rank in (None, window.rank):
            unread.append(window.trace)
    return unread


def read_unknown_rows(store: Store) -> list[UnknownRows]:
    """Return the timeline rows of unknown type, over all windows; some might be a device's."""
    texts = store.rows("SELECT unknown_rows FROM windows WHERE unknown_rows IS NOT NULL")
    return [rows for (text,) in texts for rows in msgspec.json.decode(text, type=list[UnknownRows])]


def read_left_out(store: Store) -> dict[str, int]:
    """Return the number of unrecorded profiler windows by reason, summed over ranks."""
    rows = store.rows(
        "SELECT name, sum(last)::BIGINT FROM (SELECT name, arg_max(value, time_ns) AS last "
        "FROM readings WHERE list_contains($names, name) GROUP BY name, rank, restart, labels) "
        "GROUP BY name ORDER BY sum(last) DESC, name",
        names=[metric.name for metric in _METRICS],
    )
    reasons = {metric.name: why for metric, why in zip(_METRICS, REMEDIES, strict=True)}
    return {reasons[name]: count for name, count in rows if count}


RANK_STEP: Final = "rank_step"
_MAX_NAMES: Final = 3


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
    """Return whether no window is known to lack data; an unchecked window is complete."""
    return all(window.completeness is None or window.completeness.is_complete for window in windows)


def with_rank_losses(
    windows: Sequence[WindowFacts], numbers: Sequence[int | None]
) -> list[WindowFacts]:
    """Return ``windows``; steps that only another rank's window contains are added as losses.

    ``numbers`` contains the number of each window; None for an imported window.
    """
    compared = []
    for window, number in zip(windows, numbers, strict=True):
        same = [
            other
            for other, other_number in zip(windows, numbers, strict=True)
            if other_number == number and other.restart == window.restart
        ]
        compared.append(_compared_window(window, same))
    return compared


def _compared_window(window: WindowFacts, same: Sequence[WindowFacts]) -> WindowFacts:
    own = {step for other in same if other.rank == window.rank for step in other.steps}
    others = [
        other
        for other in same
        if other.rank != window.rank and set(other.steps) & set(window.steps)
    ]
    missing = list(
        dict.fromkeys(step for other in others for step in other.steps if step not in own)
    )
    known = window.completeness
    if not missing or known is None:
        return window
    return replace(window, completeness=_without_steps(window, known, missing, others))


def _without_steps(
    window: WindowFacts,
    known: WindowCompleteness,
    missing: list[str],
    others: Sequence[WindowFacts],
) -> WindowCompleteness:
    of = len(window.steps) + len(missing)
    named = ", ".join(missing[:_MAX_NAMES]) + (", …" if len(missing) > _MAX_NAMES else "")
    rank = min(other.rank for other in others if set(missing) & set(other.steps))
    what = f"{named}, which rank {rank} recorded"
    loss = Loss(
        kind=RANK_STEP,
        missing=len(missing),
        of=of,
        start_ns=window.start_ns,
        end_ns=window.start_ns + window.duration_ns,
        what=what,
        words=(
            f"{len(missing)} of {of} steps are missing in the window of rank {window.rank}: {what}"
        ),
    )
    ratio = min(known.ratio, 1 - len(missing) / of)
    return replace(known, ratio=ratio, is_complete=False, losses=[*known.losses, loss])
