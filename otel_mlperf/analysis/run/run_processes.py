"""Processes of a run: their lifetimes, outcomes and failures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf.errors import NoSuchRun
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder

RUNNING = "running"
ENDED = "ended"
"""Of a run that is over, before the tables say how it ended."""
FINISHED = "finished"
IMPORTED = "imported"
"""Of a process that only traces from elsewhere tell of: nobody saw its end."""
_RANKS_TOLD = 16
_WORST_FIRST = ("failed", "killed", "interrupted", RUNNING, FINISHED, IMPORTED)


class RunProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One row of table ``processes``."""

    rank: int
    restart: int
    world_size: int
    pid: int
    host: str
    start_ns: int
    end_ns: int
    outcome: str
    error_type: str
    error_message: str
    error_step: int | None
    error_section: str
    result: str
    overhead_ns: int
    has_gpu: bool


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """How and where the first rank that did not finish came to an end."""

    rank: int
    step: int | None
    section: str
    type: str
    message: str


class Processes(msgspec.Struct, frozen=True):
    """All processes of a run, and the last moment that anything is known of."""

    all: list[RunProcess]
    last_ns: int

    @property
    def last_of_rank(self) -> list[RunProcess]:
        """The newest process of each rank, by rank: earlier ones were restarted."""
        newest = {
            process.rank: process
            for process in sorted(self.all, key=lambda each: (each.restart, each.start_ns))
        }
        return [newest[rank] for rank in sorted(newest)]

    @property
    def decisive(self) -> list[RunProcess]:
        """Those whose ends are the run's: the newest of each rank, and what has started that.

        A program that starts its ranks itself has the number of the first of them, and was there
        when that began; one that had ended by then was restarted.
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
        """The worst that happened to any rank; ``running`` before anything is known."""
        outcomes = {process.outcome for process in self.decisive}
        return next((outcome for outcome in _WORST_FIRST if outcome in outcomes), RUNNING)

    @property
    def ranks(self) -> int:
        """How many ranks are seen here, at least one."""
        return len(self.last_of_rank) or 1

    @property
    def nodes(self) -> int:
        """How many machines are seen here, at least one."""
        return len({process.host for process in self.all}) or 1

    @property
    def end_ns(self) -> int:
        """When the last one ended, or was last heard of; 0 before anything is known."""
        return max(map(self.end_of, self.all), default=0)

    @property
    def duration_ns(self) -> int:
        """From the first start to the last end."""
        return self.end_ns - min((process.start_ns for process in self.all), default=0)

    @property
    def busy_ns(self) -> int:
        """The lives of all processes, added up."""
        return sum(self.end_of(process) - process.start_ns for process in self.all)

    def end_of(self, process: RunProcess) -> int:
        """When it ended, or was last heard of."""
        return max(process.end_ns or self.last_ns, process.start_ns)

    def failure(self) -> Failure | None:
        """The first end that was not a good one: what comes after it may be its consequence."""
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
        """What was given to ``Run.result()``; of several ranks, the lowest one's word counts."""
        merged: dict[str, Any] = {}
        # The lowest rank comes last, so that its word stands.
        for process in reversed(self.last_of_rank):
            merged |= json.loads(process.result or "{}")
        return merged


def read_processes(store: Store) -> Processes:
    """The processes of a run, and its last sign of life."""
    columns = ", ".join(RunProcess.__struct_fields__)
    rows = store.records(f"SELECT {columns} FROM processes ORDER BY restart, rank, start_ns")
    # A process that runs has no end yet: the newest thing known of it says that it lived so long.
    last = store.rows(
        "SELECT max(t) FROM (SELECT max(end_ns) t FROM processes UNION ALL "
        "SELECT max(start_ns) FROM processes UNION ALL SELECT max(end_ns) FROM steps UNION ALL "
        "SELECT max(start_ns) FROM sections UNION ALL SELECT max(time_ns) FROM readings)"
    )
    return Processes([RunProcess(**row) for row in rows], last[0][0] or 0)


def no_such_rank(run: RunFolder, rank: int) -> NoSuchRun:
    """What to say of a rank of which nothing is known: which ones there are."""
    there = [
        known
        for (known,) in Store(run.path).rows(
            "SELECT rank FROM processes UNION SELECT rank FROM steps UNION SELECT rank FROM spans "
            "ORDER BY rank"
        )
    ]
    known = ", ".join(map(str, there[:_RANKS_TOLD])) + " …" * (len(there) > _RANKS_TOLD)
    return NoSuchRun(
        f"looking for rank {rank} of run {run.short_id}: its ranks are {known or 'not known'}"
    )
