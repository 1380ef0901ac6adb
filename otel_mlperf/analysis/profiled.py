"""Which profiler windows does a run have: read into its tables, still to be read, left out?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.window import FOLDER, WINDOW_SUFFIX, read_window

if TYPE_CHECKING:
    from otel_mlperf.store.reader import Store
    from otel_mlperf.store.runs import RunFolder

_REASONS: Final = {
    names.SKIPPED_BUSY: "another profiler was running",
    names.SKIPPED_NO_TORCH: "the program had not imported torch",
    names.SKIPPED_MEMORY: "windows before have made the process grow too far",
    names.SKIPPED_CUDA_GRAPHS: "CUDA graphs crash under a profiler with CUDA before 12.6",
    names.SKIPPED_FAILED: "the trace could not be recorded or written",
    names.SKIPPED_NOT_REACHED: "it ended before their first step",
}


def find_unread(run: RunFolder, store: Store, rank: int | None = None) -> list[str]:
    """Names of the traces that the run's processes have finished, and no table holds yet."""
    known = {tuple(row) for row in store.rows("SELECT rank, restart, trace FROM windows")}
    unread = []
    for path in sorted((run.path / FOLDER).glob(f"*{WINDOW_SUFFIX}")):
        try:
            window = read_window(path)
        except JournalError:
            continue  # nobody will read it, and the agent's log says so
        is_known = (window.rank, window.restart, window.trace) in known
        if not is_known and rank in (None, window.rank):
            unread.append(window.trace)
    return unread


def read_left_out(store: Store) -> dict[str, int]:
    """How many windows were left out, all ranks together, by the reason in words."""
    found = store.rows(
        "SELECT name, sum(last)::BIGINT FROM (SELECT name, arg_max(value, time_ns) AS last "
        "FROM readings WHERE list_contains($names, name) GROUP BY name, rank, restart, labels) "
        "GROUP BY name ORDER BY sum(last) DESC, name",
        names=[metric.name for metric in _REASONS],
    )
    reasons = {metric.name: reason for metric, reason in _REASONS.items()}
    return {reasons[name]: count for name, count in found if count}
