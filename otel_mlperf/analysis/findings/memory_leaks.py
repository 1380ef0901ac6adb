"""Finding of memory growth (leak) of a training process, on the host or on a device.

A line is fitted through the resident memory, and through the tensor memory of each device at the
start of a step. The fit covers the last two thirds of the run, between the ends of the first and
the last step, which excludes set-up, warm-up and the memory freed after the loop.

Growth is reported if all of these conditions are met:

- The line explains nearly all of the variance (r²; the limit is stricter for few readings): a step
  function, a sawtooth or noise is not growth.
- The growth continues to the end: memory that fills up and then stays constant is bounded.
- The growth exceeds the size that an optimizer's history can reach.

A process without steps and without a repeated section is not evaluated, because such a process
might only load data.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.steps.mean_estimates import student
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of
from otel_mlperf.store.table_reader import label_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_ROW: Final = row_of("memory_growth")
_MIN_READINGS: Final = 4
_FEW: Final = 8
_MIN_R_SQUARED: Final = 0.9
_MIN_R_SQUARED_OF_FEW: Final = 0.97
"""Minimum r² for few readings, because a single jump among four readings already has 0.8."""
_PARTS: Final = 8
"""Number of equal time intervals, from which the slope's error and the final pace are derived."""
_MIN_FINAL_PACE: Final = 0.5
"""Minimum pace in the last quarter of the intervals, as a fraction of the mean pace."""
_CONFIDENCE: Final = 0.95
_MIN_CALLS: Final = 20
_MINUTE_S: Final = 60.0
_MIN_BYTES: Final = 32 << 20
"""Minimum growth, because a small process may grow by a fifth for good reasons."""
_LATE: Final = """WITH read AS (
    SELECT rank, restart, coalesce(labels ->> $device, '') AS device, time_ns,
        sum(value) AS bytes FROM readings
    WHERE name = $name AND labels ->> $key = $value GROUP BY ALL),
stepped AS (
    SELECT rank, restart, min(end_ns) AS began, max(end_ns) AS ended FROM steps GROUP BY ALL),
repeated AS (
    SELECT rank FROM sections WHERE n IS NULL AND NOT list_contains($others, category)
    GROUP BY rank, restart, name HAVING sum(count) >= $again),
until AS (SELECT read.*, coalesce(began, 0) AS began
    FROM read LEFT JOIN stepped USING (rank, restart) WHERE time_ns <= coalesce(ended, time_ns)),
bounds AS (
    SELECT rank, restart, device, min(time_ns) AS first, max(time_ns) AS last
    FROM until GROUP BY ALL),
late AS (SELECT until.*, (time_ns - first) / 1e9 AS at_s
    FROM until JOIN bounds USING (rank, restart, device)
    WHERE time_ns >= greatest(first + (last - first) / 3, began))
SELECT rank, device, list(at_s ORDER BY time_ns), list(bytes ORDER BY time_ns)
FROM late WHERE rank IN (SELECT rank FROM stepped UNION SELECT rank FROM repeated)
GROUP BY rank, restart, device HAVING count(*) >= $fewest
ORDER BY rank, restart, device"""
_MAY_FILL: Final = "SELECT rank, max(value) FROM readings WHERE name = $name GROUP BY rank"


class _Growth(NamedTuple):
    before: float
    per_s: float
    low_per_s: float
    high_per_s: float
    over_s: float
    straight: float
    """Share of the variance that the line explains (r²)."""
    goes_on: bool

    @property
    def grown(self) -> float:
        return self.per_s * self.over_s


class _Memory(NamedTuple):
    """A memory metric to evaluate, and the label key and value that select its series."""

    metric: str
    key: str
    value: str
    of: str
    """Description of the memory, with a placeholder for its device if any."""


_MEMORIES: Final = (
    # Only training processes: workers start and end.
    _Memory(names.PROCESS_MEMORY.name, names.PROCESS_ROLE, "main", "the process"),
    _Memory(names.CUDA_MEMORY.name, names.CUDA_MEMORY_STATE, "allocated", "tensors on {device}"),
)


def find_memory_growth(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per rank and kind of memory that grows beyond the threshold."""
    found, may_fill = {}, dict(numbers.store.rows(_MAY_FILL, name=names.OPTIMIZER_HISTORY.name))
    for memory in _MEMORIES:
        for rank, index, at_s, read in numbers.store.rows(
            _LATE,
            name=memory.metric,
            key=label_path(memory.key),
            value=memory.value,
            device=label_path(names.DEVICE_INDEX),
            fewest=_MIN_READINGS,
            again=_MIN_CALLS,
            others=[names.RUN, names.GARBAGE_COLLECTION, names.COMPILE],
        ):
            growth = _growth(np.array(at_s), np.array(read))
            if growth is not None and _is_leak(growth, may_fill.get(rank, 0.0)):
                device = f"cuda:{index}" if index else ""
                of = memory.of.format(device=device)
                found[device, rank] = _finding(growth, of, Where(rank=rank, device=device))
    return [*found.values()]


def _is_leak(growth: _Growth, may_fill: float) -> bool:
    """Return whether memory grows until the end, and by far more than ``may_fill``.

    ``may_fill`` is the size in bytes that the optimizer's history can reach.
    """
    unbound = growth.grown - may_fill
    is_much = unbound >= _MIN_BYTES and growth.before > 0
    return growth.goes_on and is_much and _ROW.holds(unbound / growth.before)


def _growth(at_s: NDArray[np.float64], read: NDArray[np.float64]) -> _Growth | None:
    """Return the line fitted to the memory; None if it fits badly or does not rise significantly.

    ``read`` contains the memory in bytes at the times ``at_s``, in seconds.
    """
    over_s = float(at_s[-1] - at_s[0])
    if over_s <= 0 or not read.std():
        return None
    straight = float(np.corrcoef(at_s, read)[0, 1]) ** 2
    if straight < (_MIN_R_SQUARED if len(read) >= _FEW else _MIN_R_SQUARED_OF_FEW):
        return None
    per_s, before = (float(value) for value in np.polyfit(at_s - at_s[0], read, 1))
    paces = _paces(at_s, read)
    reach = student(_CONFIDENCE, len(paces) - 1) * float(paces.std(ddof=1)) / math.sqrt(len(paces))
    if per_s - reach <= 0:
        return None
    late = float(paces[-max(1, len(paces) // 4) :].mean())
    goes_on = late >= _MIN_FINAL_PACE * per_s
    return _Growth(before, per_s, per_s - reach, per_s + reach, over_s, straight, goes_on)


def _paces(at_s: NDArray[np.float64], read: NDArray[np.float64]) -> NDArray[np.float64]:
    edges = np.linspace(at_s[0], at_s[-1], min(_PARTS, len(read) - 1) + 1)
    paces: NDArray[np.float64] = np.diff(np.interp(edges, at_s, read)) / np.diff(edges)
    return paces


def _finding(growth: _Growth, of: str, where: Where) -> Finding:
    over_s, before = growth.over_s, growth.before
    time = f"{over_s:.0f} s" if over_s < 2 * _MINUTE_S else f"{over_s / _MINUTE_S:.0f} min"
    grown = f"{growth.grown / 2**20:,.0f} MiB"
    fields = {"grown": grown, "value": growth.grown / before, "time": time, "of": of}
    least, most = growth.low_per_s * over_s, growth.high_per_s * over_s
    return Finding(
        id=_ROW.id,
        severity=_ROW.severity,
        summary=_ROW.summary.format(**fields),
        action=_ROW.action,
        evidence={
            "bytes_per_s": growth.per_s,
            "bytes_per_s_low": growth.low_per_s,
            "bytes_per_s_high": growth.high_per_s,
            "grown_bytes": growth.grown,
            "before_bytes": before,
            "r_squared": growth.straight,
        },
        where=where,
        gain=Gain(low=least / (before + least), high=most / (before + most), of="memory"),
    )
