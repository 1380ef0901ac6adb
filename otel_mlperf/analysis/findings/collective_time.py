"""Findings of collectives that take a large share of a step: ranks wait, or data is moved.

If a straggler or uneven shards were found, that finding covers the wait for the late rank, and this
finding covers the remaining time. A rank that lacks a CPU is occasionally late and exchanges data
slowly. Therefore waits and DDP's exchange of gradients count only if all ranks are known to have
rarely waited for a CPU. The exchange, which is necessary, counts only above half of a step.

If the user's program reports its own steps, collectives can run inside the program's own sections,
where collectives are not recorded. In that case the evidence is a large number of collectives per
step, combined with main threads that are blocked on all ranks.
"""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.cpu_shares import read_cpu_shares
from otel_mlperf.analysis.findings.rank_steps import read_rank_steps
from otel_mlperf.analysis.findings.stragglers import find_stragglers
from otel_mlperf.analysis.findings.uneven_shards import find_uneven_shards
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_LATE: Final = (find_stragglers, find_uneven_shards)
_MIN_NS: Final = 5_000_000
"""Minimum time in collectives per step. In a short step, their latency alone is a large share."""
_TOO_MUCH: Final = 0.5
_VERY_MANY: Final = 16.0
"""Collectives per optimizer update from which they are too many, because DDP needs only a few."""
_MIN_SAVED_OF_VERY_MANY: Final = 0.7
"""If collectives are too many, the minimum fraction of their time that fewer of them save."""
_MANY: Final = 4.0
"""Collectives per update, other than those of gradients, from which the action mentions them."""
_LAST: Final = """SELECT name, avg(value) FROM (
    SELECT name, rank, arg_max(value, time_ns) AS value FROM readings
    WHERE name IN (SELECT unnest($names)) AND rank IS NOT NULL GROUP BY ALL) GROUP BY name"""


class _Counted(NamedTuple):
    """Counts of collectives (means over ranks) from counters; None if unknown."""

    collectives: float | None
    """All collectives per optimizer update, in or outside sections."""
    buckets: float | None
    """Collectives per update in which DDP exchanges gradients."""
    gradients_bytes: float | None

    @property
    def words(self) -> str:
        phrases = []
        if self.collectives is not None:
            phrases.append(f"{self.collectives:,.0f} collectives per update")
        if self.buckets is not None and self.gradients_bytes is not None:
            phrases.append(
                f"{self.gradients_bytes / 2**20:,.1f} MiB of gradients in "
                f"{self.buckets:.0f} bucket{'s' if round(self.buckets) != 1 else ''}"
            )
        return "".join(f"; {one}" for one in phrases)

    @property
    def advice(self) -> str:
        non_gradient = (self.collectives or 0.0) - (self.buckets or 0.0)
        if non_gradient < _MANY:
            return ""
        return (
            f"Start with the {non_gradient:,.0f} collectives per update without DDP's gradients. "
        )

    @property
    def evidence(self) -> dict[str, float]:
        return {name: value for name, value in self._asdict().items() if value is not None}


def find_collectives(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if collectives exceed the threshold share of a step (mean over ranks)."""
    ranks, row = read_rank_steps(numbers), row_of("collectives")
    if not ranks:
        return []
    step_ns = mean(one.step_ns for one in ranks)
    waiting = mean(one.waited_ns for one in ranks) / step_ns
    moving = mean(one.apart_ns for one in ranks) / step_ns - waiting
    exchanged = min(one.in_backward_ns for one in ranks) / step_ns
    if not _have_cpus(numbers):
        waiting = exchanged = 0.0
    if any(find(numbers) for find in _LATE):
        waiting = 0.0
    apart = waiting + moving
    if exchanged > _TOO_MUCH:
        moving += exchanged
    share = min(1.0, waiting + moving)
    if not row.holds(share) or share * step_ns < _MIN_NS:
        return _find_unrecorded(numbers, step_ns)
    counted = _read_counted(numbers)
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=f"{row.summary.format(value=share)}: likely {moving:.0%} for data transfer, "
            f"{waiting:.0%} for waiting for late ranks{counted.words}",
            action=counted.advice + row.action,
            evidence={
                "share": share,
                "waiting": waiting,
                "moving": moving,
                "in_backward": exchanged,
            }
            | counted.evidence,
            where=Where(section=_largest(numbers) if 2 * apart >= share else names.BACKWARD),
            gain=_gain(share, moving, counted),
            command=f"otel-mlperf show {numbers.summary.short_id}",
        )
    ]


def _gain(share: float, moving: float, counted: _Counted) -> Gain:
    """Return the share of a step, at most ``share``, that fewer collectives save.

    The minimum is zero, because ranks have to synchronize somewhere. With very many collectives it
    is a part of ``moving``, which is then mostly latency.
    """
    are_many = (counted.collectives or 0.0) >= _VERY_MANY
    low = _MIN_SAVED_OF_VERY_MANY * moving if are_many else 0.0
    return Gain(low=low, high=share)


def _find_unrecorded(numbers: RunNumbers, step_ns: float) -> list[Finding]:
    row, steps = row_of("collectives"), numbers.summary.steps
    assert steps is not None
    counted = _read_counted(numbers)
    if numbers.uses_gpu or not counted.collectives or counted.collectives < _VERY_MANY:
        return []
    if any(one.category == names.COMMUNICATION for one in steps.rows):
        return []
    share = _blocked_share(numbers)
    if not row.holds(share) or share * step_ns < _MIN_NS:
        return []
    computing = [one for one in steps.rows if one.category != names.DATA_LOADING]
    section = max(computing, key=lambda one: one.share).name
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=share)
            + " on every rank, likely: the main thread is blocked for that time, mostly in "
            f"{section}{counted.words}",
            action=row.action,
            evidence={"share": share} | counted.evidence,
            where=Where(section=section),
            # Each collective also costs CPU time, which is a part of the time that is not blocked.
            gain=Gain(low=_MIN_SAVED_OF_VERY_MANY * share, high=(1 + share) / 2).narrowed(),
            command=f"otel-mlperf show {numbers.summary.short_id}",
        )
    ]


def _blocked_share(numbers: RunNumbers) -> float:
    """Return the share of a step in which the main thread was blocked, other than in data waits.

    The lowest share of all ranks counts; 0.0 if any rank's share is unknown.
    """
    steps, ranks = numbers.summary.steps, read_cpu_shares(numbers).ranks
    if steps is None or len(ranks) != len(read_rank_steps(numbers)) or not ranks:
        return 0.0
    waiting = sum(one.share for one in steps.rows if one.category == names.DATA_LOADING)
    return min(1 - one.main_on_cpu - one.main_waits for one in ranks) - waiting


def _read_counted(numbers: RunNumbers) -> _Counted:
    known = (names.COLLECTIVES.name, names.DDP_BUCKETS.name, names.DDP_GRADIENTS.name)
    read = dict(numbers.store.rows(_LAST, names=list(known)))
    return _Counted(*(read.get(name) for name in known))


def _have_cpus(numbers: RunNumbers) -> bool:
    ranks, busy = read_cpu_shares(numbers).ranks, row_of("noisy_neighbour")
    is_known = len(ranks) == len(read_rank_steps(numbers))
    return is_known and not any(busy.holds(one.main_waits) for one in ranks)


def _largest(numbers: RunNumbers) -> str:
    assert numbers.summary.steps is not None
    rows = [one for one in numbers.summary.steps.rows if one.category == names.COMMUNICATION]
    return max(rows, key=lambda one: one.share).name
