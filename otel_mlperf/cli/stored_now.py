"""Wait until the agent has stored what a run has recorded so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder


def wait_for_now(folder: RunFolder) -> list[str]:
    """Wait until the run's current records are stored; return messages on missing records."""
    from otel_mlperf.journal.journal_folder import folders_of_run
    from otel_mlperf.journal.stored_wait import find_left, request_tables, wait_for_tables
    from otel_mlperf.store.table_reader import load_duckdb

    requested = request_tables(*folders_of_run(folder.facts.id, folder.path))
    if not requested:
        return []
    load_duckdb()
    unread = find_left(folder.facts.id, folder.path, folder.short_id)
    return unread or wait_for_tables(requested)
