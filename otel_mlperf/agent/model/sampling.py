"""Sampling of steps and sections as spans, and the span budgets.

All steps and sections are measured; only some are sampled as spans. Sampled on every rank:

- The first five steps and every hundredth step.

Sampled only on the rank where they occur:

- Steps in a profiler window.
- Steps slower than twice the median of the last hundred, and failed steps. Each group has a limit
  per minute.
- Steps longer than every step sampled before, without a limit. The slowest step is thus always
  sampled.

Sections outside steps follow the same rules, by section name. All times are event times, so that a
replay makes the same decisions.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from otel_mlperf.agent.model.agent_state import RankState
    from otel_mlperf.journal.profiler_windows import Window

PROFILED: Final = "profiled"
FIRST: Final = "first"
EVERY: Final = "every"
SLOW: Final = "slow"
ERROR: Final = "error"
LONGEST: Final = "longest"
INTERRUPTED: Final = "interrupted"
PART: Final = "part"
"""Reason of a section that is sampled because a section inside it is sampled."""

_FEWEST_SPANS: Final = 20
"""Minimum useful number of spans that one rank contributes to a trace."""
_RUN_PART: Final = 10
"""A profiler window can add at most this fraction (1/10) of a rank's span budget to the run's
trace, because a run can have many windows."""
_WINDOW: Final = 100
_ENOUGH: Final = 5
"""Minimum number of known durations that is required to call another duration slow."""
_LONGER: Final = 1.02
"""Minimum ratio to the longest sampled duration. A ratio of 1 would sample every step of a slow
drift."""
_MINUTE_NS: Final = 60_000_000_000


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling limits. ``settings.config.Config`` explains the limits that users can set."""

    trace_first: int = 5
    trace_every: int = 100
    trace_slow_ratio: float = 2.0
    slow_per_minute: int = 6
    errors_per_minute: int = 60
    max_spans_per_trace: int = 5000
    max_spans_per_rank: int = 2000

    def scheduled(self, index: int) -> str | None:
        """Return ``first`` or ``every`` if the schedule samples ``index`` (from 0), else None."""
        if index < self.trace_first:
            return FIRST
        return EVERY if index % self.trace_every == 0 else None

    def spans_of_rank(self, world_size: int) -> int:
        """Return the maximum number of spans that one rank adds to one trace."""
        return max(1, min(self.max_spans_per_rank, self.max_spans_per_trace // max(1, world_size)))

    def spans_of_step(self, rank: int, world_size: int, trace: bytes, reason: str) -> int:
        """Return the maximum number of spans that ``rank`` adds to the trace of a step.

        1 means only the step's own span. A profiled step gets the maximum per rank, because
        profiler events become children of the step's sections. If an equal share per rank is too
        small to be useful, up to eight ranks share the budget, and all other ranks get 1. All ranks
        select the same eight ranks, because the selection is computed from the trace id.
        """
        if reason == PROFILED:
            return self.max_spans_per_rank
        share = self.spans_of_rank(world_size)
        if share >= _FEWEST_SPANS:
            return share
        chosen = {int.from_bytes(trace[i : i + 2], "big") % world_size for i in range(0, 16, 2)}
        room = max(1, (self.max_spans_per_trace - world_size) // len(chosen))
        return min(self.max_spans_per_rank, room) if rank in chosen else 1

    def spans_of_window(self, window: Window) -> tuple[int, dict[str, int]]:
        """Return a profiler window's span limits in the run's trace, and in step traces by id."""
        by_trace = {
            step.trace: self.spans_of_step(
                window.rank, window.world_size, bytes.fromhex(step.trace), EVERY
            )
            for step in window.steps
        }
        return self.spans_of_rank(window.world_size) // _RUN_PART, by_trace


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
    """Return the reason to sample a step or section; None if it is not sampled.

    ``key`` is the step's phase, or contains the section's name; ``index`` counts from 0 by key.
    ``now_ns`` is the event's time, for the limits per minute. The duration is stored for later
    calls, except if ``profiled``, because a profiler slows steps down. A duration is compared with
    the previous hundred.
    """
    if profiled:
        return PROFILED
    recent_ns = rank.step_ns.setdefault(key, [])
    # Compare with the minimum first: it is a lower bound of the median at a tenth of the cost.
    slow = (
        len(recent_ns) >= _ENOUGH
        and duration_ns > policy.trace_slow_ratio * min(recent_ns)
        and duration_ns > policy.trace_slow_ratio * statistics.median(recent_ns)
    )
    # Store durations of sampled steps too: the median must not depend on the sampling.
    is_known = len(recent_ns) >= _ENOUGH
    recent_ns.append(duration_ns)
    del recent_ns[:-_WINDOW]
    is_longest = not error and duration_ns > _LONGER * rank.longest_ns.get(key, 0)
    reason = policy.scheduled(index)
    # Check errors first: a failed step is often slow as well, and errors have the larger limit.
    if reason is None and error and _within(rank, ERROR, policy.errors_per_minute, now_ns):
        reason = ERROR
    if reason is None and slow and _within(rank, SLOW, policy.slow_per_minute, now_ns):
        reason = SLOW
    if reason is None and is_longest and is_known:
        reason = LONGEST
    if reason is not None and is_longest and index:
        rank.longest_ns[key] = duration_ns
    return reason


def _within(rank: RankState, reason: str, limit: int, now_ns: int) -> bool:
    times = [t for t in rank.lately.get(reason, ()) if now_ns - t < _MINUTE_NS]
    allowed = len(times) < limit
    if allowed:
        times.append(now_ns)
    rank.lately[reason] = times
    return allowed
