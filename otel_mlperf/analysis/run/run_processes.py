"""Lifetimes, outcomes and failures of a run's processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf.errors import NoSuchRun
from otel_mlperf.store.table_reader import Store
from otel_mlperf.tables.run_tables import ProcessRow

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder

RUNNING = "running"
ENDED = "ended"
"""Outcome of a run that has ended, as long as the tables do not contain its actual outcome."""
FINISHED = "finished"
IMPORTED = "imported"
"""Outcome of a process known only from imported traces, because its end was not observed."""
_MAX_RANKS_LISTED = 16
_WORST_FIRST = ("failed", "killed", "interrupted", RUNNING, FINISHED, IMPORTED)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Abnormal end of the first failed rank: its step, section and error."""

    rank: int
    step: int | None
    section: str
    type: str
    message: str


class Processes(msgspec.Struct, frozen=True):
    """All processes of a run, and the time of its last record."""

    all: list[ProcessRow]
    last_ns: int

    @property
    def last_of_rank(self) -> list[ProcessRow]:
        """Return the newest process of each rank, sorted by rank."""
        newest = {
            process.rank: process
            for process in sorted(self.all, key=lambda each: (each.restart, each.start_ns))
        }
        return [newest[rank] for rank in sorted(newest)]

    @property
    def decisive(self) -> list[ProcessRow]:
        """Return the processes that determine the outcome: each rank's newest, and launchers.

        A launcher, a program that starts its ranks itself, has the rank number of its first rank
        and is still running when that rank's process starts. An earlier process of a rank that
        ended before the newest one started is not decisive: it was restarted.
        """
        newest = {process.rank: process for process in self.last_of_rank}
        return [
            process
            for process in self.all
            if (last := newest[process.rank]) is process
            or (process.restart == last.restart and self.end_of(process) > last.start_ns)
        ]

    @property
    def outcome(self) -> str:
        """Return the worst outcome of the decisive processes; ``running`` if none is known yet."""
        outcomes = {process.outcome for process in self.decisive}
        return next((outcome for outcome in _WORST_FIRST if outcome in outcomes), RUNNING)

    @property
    def ranks(self) -> int:
        """Return the number of ranks with a process, at least one."""
        return len(self.last_of_rank) or 1

    @property
    def nodes(self) -> int:
        """Return the number of hosts with a process, at least one."""
        return len({process.host for process in self.all}) or 1

    @property
    def end_ns(self) -> int:
        """Return the Unix time of the last end or record of a process; 0 if no process is known."""
        return max(map(self.end_of, self.all), default=0)

    @property
    def duration_ns(self) -> int:
        """Return the time in ns from the first start of a process to ``end_ns``."""
        return self.end_ns - min((process.start_ns for process in self.all), default=0)

    @property
    def busy_ns(self) -> int:
        """Return the sum of all processes' lifetimes, in ns."""
        return sum(self.end_of(process) - process.start_ns for process in self.all)

    def end_of(self, process: ProcessRow) -> int:
        """Return the Unix time of the process's end or, while it runs, of the run's last record."""
        return max(process.end_ns or self.last_ns, process.start_ns)

    def failure(self) -> Failure | None:
        """Return the first abnormal end of a process; None if no process ended abnormally.

        Later abnormal ends are ignored, because they might be consequences of the first.
        """
        outcome = self.outcome
        bad = [process for process in self.decisive if process.outcome == outcome]
        if not bad or outcome in (FINISHED, RUNNING, IMPORTED):
            return None
        first = min(bad, key=self.end_of)
        return Failure(
            rank=first.rank,
            step=first.error_step,
            section=first.error_section,
            type=first.error_type,
            message=first.error_message,
        )

    def result(self) -> dict[str, Any]:
        """Return the values of ``Run.result()`` by name; values of lower ranks take precedence."""
        merged: dict[str, Any] = {}
        # The lowest rank must be last: its values overwrite those of other ranks.
        for process in reversed(self.last_of_rank):
            merged |= json.loads(process.result or "{}")
        return merged


def read_processes(store: Store) -> Processes:
    """Return the processes of a run, and the time of its last record."""
    processes = store.read(ProcessRow, "ORDER BY restart, rank, start_ns")
    # A running process has no end yet: its newest record shows how long it has lived.
    last = store.rows(
        "SELECT max(t) FROM (SELECT max(end_ns) t FROM processes UNION ALL "
        "SELECT max(start_ns) FROM processes UNION ALL SELECT max(end_ns) FROM steps UNION ALL "
        "SELECT max(start_ns) FROM sections UNION ALL SELECT max(time_ns) FROM readings)"
    )
    return Processes(processes, last[0][0] or 0)


def no_such_rank(run: RunFolder, rank: int) -> NoSuchRun:
    """Return the exception for an unknown rank, with a message that lists the known ranks."""
    existing = [
        known
        for (known,) in Store(run.path).rows(
            "SELECT rank FROM processes UNION SELECT rank FROM steps UNION SELECT rank FROM spans "
            "ORDER BY rank"
        )
    ]
    known = ", ".join(map(str, existing[:_MAX_RANKS_LISTED])) + " …" * (
        len(existing) > _MAX_RANKS_LISTED
    )
    return NoSuchRun(
        f"looking for rank {rank} of run {run.short_id}: the run has ranks "
        f"{known or 'not yet known'}"
    )
