"""Which steps and sections are kept as spans, of the many that are only measured?

Kept are the first five, one in a hundred (the same on all ranks), and on the rank that saw it what
ran in a profiler window, and, each with a limit a minute, what took over twice the median of the
last hundred and what ended in an error. Outside steps the same holds by name. Time is the time of
the events, so a replay decides alike.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.model.sampling_policy import ERROR, PROFILED, SLOW

if TYPE_CHECKING:
    from otel_mlperf.agent.model.agent_state import RankState
    from otel_mlperf.agent.model.sampling_policy import Policy

_WINDOW: Final = 100
_ENOUGH: Final = 5
"""Durations known before one can be called slow."""
_MINUTE_NS: Final = 60_000_000_000


def reason_to_keep(
    policy: Policy,
    rank: RankState,
    key: str,
    index: int,
    duration_ns: int,
    now_ns: int,
    *,
    error: bool,
    profiled: bool = False,
) -> str | None:
    """Why the ``index``-th step of phase ``key`` (or section ``key``) is kept, None if it is not.

    Remembers the duration: what is slow is judged by the hundred before it, without those that a
    profiler slowed down.
    """
    if profiled:
        return PROFILED
    lately = rank.step_ns.setdefault(key, [])
    # The shortest is a bound for the median, and costs a tenth of it.
    slow = (
        len(lately) >= _ENOUGH
        and duration_ns > policy.slow_ratio * min(lately)
        and duration_ns > policy.slow_ratio * statistics.median(lately)
    )
    # Also of those that are kept anyway: what is normal does not depend on what is shown.
    lately.append(duration_ns)
    del lately[:-_WINDOW]
    scheduled = policy.scheduled(index)
    if scheduled:
        return scheduled
    # Errors before slowness: a failed step is often slow as well, and has the larger limit.
    if error and _within(rank, ERROR, policy.errors_per_minute, now_ns):
        return ERROR
    if slow and _within(rank, SLOW, policy.slow_per_minute, now_ns):
        return SLOW
    return None


def _within(rank: RankState, reason: str, limit: int, now_ns: int) -> bool:
    times = [t for t in rank.lately.get(reason, ()) if now_ns - t < _MINUTE_NS]
    allowed = len(times) < limit
    if allowed:
        times.append(now_ns)
    rank.lately[reason] = times
    return allowed
