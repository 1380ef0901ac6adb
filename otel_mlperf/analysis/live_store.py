"""What does a run folder say of a run's last moments, and of its GPUs as last read?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.live_steps import MOST_STEPS, StepSeen
from otel_mlperf.analysis.logged import read_last
from otel_mlperf.analysis.processes import read_processes
from otel_mlperf.analysis.steps import main_phase
from otel_mlperf.store.reader import Store

if TYPE_CHECKING:
    from otel_mlperf.store.runs import RunFolder

_LATE_NS: Final = 60 * 10**9
"""A reading so much older than the newest is of something that is gone."""
_FIELDS: Final = {
    names.GPU_UTILIZATION.name: "utilization",
    names.GPU_MEMORY_USAGE.name: "memory_bytes",
    names.GPU_MEMORY_LIMIT.name: "memory_limit_bytes",
    names.HW_POWER.name: "power_w",
    names.HW_TEMPERATURE.name: "temperature_c",
}
_ASKED: Final = (*_FIELDS, names.THROTTLE.name, names.PROCESS_MEMORY.name)
_IDLE: Final = "gpu_idle"


class Device(msgspec.Struct, kw_only=True):
    """One GPU as last read; what it does not offer is None."""

    id: str
    name: str
    rank: int | None
    """That uses it; None: not known, or several."""
    utilization: float | None = None
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttled: list[str] = []
    """Why its clocks are held down."""


class StoredRank(msgspec.Struct, kw_only=True):
    """One rank as the run folder has it."""

    host: str
    outcome: str
    steps: list[StepSeen] = []
    memory_bytes: float | None = None
    cpus: float | None = None


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its folder has it."""

    outcome: str
    phase: str
    last_ns: int
    """The last moment that anything is known of."""
    read_ns: int
    """When anything was read last; 0: never."""
    steps_expected: int | None
    last: dict[str, float]
    ranks: dict[int, StoredRank]
    devices: list[Device]


def read(run: RunFolder) -> Stored:
    """The last steps, values and readings.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    store = Store(run.path)
    processes = read_processes(store)
    ranks = {
        one.rank: StoredRank(host=one.host, outcome=one.outcome) for one in processes.last_of_rank
    }
    phase = main_phase(store) or ""
    for rank, step in _steps(store, phase):
        if rank in ranks:
            ranks[rank].steps.append(step)
    devices: dict[str, Device] = {}
    readings = _readings(store)
    for owner, name, labels, value, _ in readings:
        if names.HW_ID in labels:
            _enter(devices, owner, name, labels, value)
        elif owner in ranks:
            ranks[owner].memory_bytes = (ranks[owner].memory_bytes or 0.0) + value
    for rank, cpus in _cpus(store):
        if rank in ranks:
            ranks[rank].cpus = cpus
    return Stored(
        outcome=processes.outcome,
        phase=phase,
        last_ns=processes.last_ns,
        read_ns=max((one[-1] for one in readings), default=0),
        steps_expected=_expected(store),
        last=read_last(store),
        ranks=ranks,
        devices=sorted(devices.values(), key=lambda one: (one.rank is None, one.rank, one.name)),
    )


def _steps(store: Store, phase: str) -> list[tuple[int, StepSeen]]:
    """The last steps of each rank's last process, in their order."""
    found = store.rows(
        "WITH last AS (SELECT * FROM steps WHERE phase = $phase QUALIFY row_number() OVER "
        "(PARTITION BY rank ORDER BY restart DESC, n DESC) <= $most), "
        "waits AS (SELECT rank, restart, n, sum(self_ns)::BIGINT AS waited FROM sections "
        "WHERE phase = $phase AND n NOTNULL AND NOT beside AND category = $data GROUP BY ALL) "
        "SELECT rank, number, start_ns, end_ns, duration_ns, coalesce(waited, 0), samples, tokens "
        "FROM last LEFT JOIN waits USING (rank, restart, n) ORDER BY rank, restart, n",
        phase=phase,
        most=MOST_STEPS,
        data=names.DATA_LOADING,
    )
    return [(rank, StepSeen(*step)) for rank, *step in found]


def _readings(store: Store) -> list[tuple[int | None, str, dict[str, Any], float, int]]:
    """The newest value of each series that is shown; of what is gone nothing."""
    found = store.rows(
        "SELECT rank, name, labels, arg_max(value, time_ns), max(time_ns) AS at FROM readings "
        "WHERE name IN (SELECT unnest($asked)) "
        "AND time_ns > (SELECT max(time_ns) FROM readings) - $late GROUP BY rank, name, labels",
        asked=list(_ASKED),
        late=_LATE_NS,
    )
    newest: dict[tuple[int | None, str], int] = {}
    for rank, name, _, _, at in found:
        newest[rank, name] = max(at, newest.get((rank, name), 0))
    return [
        (rank, name, json.loads(labels or "{}"), value, at)
        for rank, name, labels, value, at in found
        if at == newest[rank, name]
    ]


def _enter(
    devices: dict[str, Device], rank: int | None, name: str, labels: dict[str, Any], value: float
) -> None:
    if labels.get(names.HW_GPU_TASK, "general") != "general":
        return
    if labels.get(names.HW_SENSOR_LOCATION, "gpu") != "gpu" or labels.get(names.HW_PARENT):
        return
    device = devices.setdefault(
        labels[names.HW_ID],
        Device(id=labels[names.HW_ID], name=labels.get(names.HW_NAME, "gpu"), rank=rank),
    )
    if name == names.THROTTLE.name:
        reason = labels.get(names.THROTTLE_REASON, "")
        device.throttled += [reason] if value and reason != _IDLE else []
    else:
        setattr(device, _FIELDS[name], value)


def _cpus(store: Store) -> list[tuple[int, float]]:
    """CPU time between the last two readings of each rank / the time between them."""
    return store.rows(
        "WITH totals AS (SELECT rank, time_ns, sum(value) AS used FROM readings "
        "WHERE name = $cpu AND rank NOTNULL "
        "AND time_ns > (SELECT max(time_ns) FROM readings) - $late GROUP BY rank, time_ns "
        "QUALIFY row_number() OVER (PARTITION BY rank ORDER BY time_ns DESC) <= 2) "
        "SELECT rank, (max(used) - min(used)) / ((max(time_ns) - min(time_ns)) / 1e9) FROM totals "
        "GROUP BY rank HAVING count(*) = 2",
        cpu=names.PROCESS_CPU_TIME.name,
        late=_LATE_NS,
    )


def _expected(store: Store) -> int | None:
    found = store.rows(
        "SELECT arg_max(value, time_ns) FROM readings WHERE name = $name",
        name=names.STEPS_EXPECTED.name,
    )
    value = found[0][0]
    return None if value is None else int(value)
