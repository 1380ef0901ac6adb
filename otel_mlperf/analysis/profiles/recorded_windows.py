"""Profiler windows of a run: stored in its tables, pending, or left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf import names
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.profiler_windows import FOLDER, WINDOW_SUFFIX, read_window
from otel_mlperf.store.window_facts import UnknownRows

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder
    from otel_mlperf.store.table_reader import Store

REMEDIES: Final = {
    "another profiler was running": "let one run at a time, or join it with om.trace_handler()",
    "the program had not imported torch": "import torch before the window begins",
    "windows before have made the process grow too far": "record fewer or shorter windows",
    "CUDA graphs crash under a profiler with CUDA before 12.6": "use CUDA 12.6 or later",
    "the trace could not be recorded or written": "see the program's stderr",
    "it ended before their first step": "begin earlier: with a smaller wait; count steps, not "
    "epochs, where no step has an epoch",
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
