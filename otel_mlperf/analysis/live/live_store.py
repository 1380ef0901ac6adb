"""Latest steps, values and readings of a run, read from its run folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.live.live_readings import ASKED
from otel_mlperf.analysis.run.run_processes import read_processes
from otel_mlperf.analysis.steps.step_shares import main_phase
from otel_mlperf.analysis.summary.logged import read_last
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.analysis.live.live_readings import Value
    from otel_mlperf.store.run_folders import RunFolder

_LATE_NS: Final = 60 * 10**9
"""A series whose latest reading is this much older than the newest of the run has ended."""


MAX_STEPS: Final = 60
"""Maximum number of steps per rank: enough for a mean, few enough to be current."""


class StepSeen(NamedTuple):
    """One step of one rank; times are Unix time."""

    number: int
    start_ns: int
    end_ns: int
    duration_ns: int
    """Duration without phases and checkpoints inside the step."""
    waited_ns: int
    """Data wait on the step's thread."""
    samples: int | None
    tokens: int | None
    flops: int | None


class StoredRank(msgspec.Struct, kw_only=True):
    """Final or latest state of one rank in the run folder."""

    host: str
    outcome: str
    steps: list[StepSeen] = []


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Final or latest state of a run in its folder."""

    outcome: str
    phase: str
    last_ns: int
    """Unix time of the latest record."""
    read_ns: int
    """Unix time of the latest reading; 0: there are no readings."""
    steps_expected: int | None
    last: dict[str, float]
    ranks: dict[int, StoredRank]
    readings: list[Value]


def read(run: RunFolder) -> Stored:
    """Return the latest state of a run, with the last steps of each rank.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    store = Store(run.path, is_recent=True)
    processes = read_processes(store)
    ranks = {
        process.rank: StoredRank(host=process.host, outcome=process.outcome)
        for process in processes.last_of_rank
    }
    phase = main_phase(store) or ""
    for rank, step in _steps(store, phase):
        if rank in ranks:
            ranks[rank].steps.append(step)
    readings = _readings(store)
    return Stored(
        outcome=processes.outcome,
        phase=phase,
        last_ns=processes.last_ns,
        read_ns=max((at for _, at in readings), default=0),
        steps_expected=_expected(store),
        last=read_last(store),
        ranks=ranks,
        readings=[value for value, _ in readings],
    )


def _steps(store: Store, phase: str) -> list[tuple[int, StepSeen]]:
    rows = store.rows(
        "WITH last AS (SELECT * FROM steps WHERE phase = $phase QUALIFY row_number() OVER "
        "(PARTITION BY rank ORDER BY restart DESC, n DESC) <= $most), "
        "waits AS (SELECT rank, restart, n, sum(self_ns)::BIGINT AS waited FROM sections "
        "WHERE phase = $phase AND n NOTNULL AND NOT beside AND category = $data GROUP BY ALL) "
        "SELECT rank, number, start_ns, end_ns, duration_ns, coalesce(waited, 0), samples, "
        "tokens, flops "
        "FROM last LEFT JOIN waits USING (rank, restart, n) ORDER BY rank, restart, n",
        phase=phase,
        most=MAX_STEPS,
        data=names.DATA_LOADING,
    )
    return [(rank, StepSeen(*step)) for rank, *step in rows]


def _readings(store: Store) -> list[tuple[Value, int]]:
    """Return the newest value and its Unix time for each displayed series that has not ended."""
    rows = store.rows(
        "SELECT rank, name, labels, arg_max(value, time_ns), max(time_ns) AS at FROM readings "
        "WHERE name IN (SELECT unnest($asked)) "
        "AND time_ns > (SELECT max(time_ns) FROM readings) - $late GROUP BY rank, name, labels",
        asked=list(ASKED),
        late=_LATE_NS,
    )
    # All series of a metric are read together: a series older than the newest one belongs to
    # a GPU or process that no longer exists.
    newest: dict[tuple[int | None, str], int] = {}
    for rank, name, _, _, at in rows:
        newest[rank, name] = max(at, newest.get((rank, name), 0))
    return [
        ((rank, name, json.loads(labels or "{}"), value), at)
        for rank, name, labels, value, at in rows
        if at == newest[rank, name]
    ]


def _expected(store: Store) -> int | None:
    rows = store.rows(
        "SELECT arg_max(value, time_ns) FROM readings WHERE name = $name",
        name=names.STEPS_EXPECTED.name,
    )
    value = rows[0][0]
    return None if value is None else int(value)
