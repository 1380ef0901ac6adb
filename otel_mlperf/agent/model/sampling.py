"""Sampling of steps and sections as spans, and the span budgets.

All steps and sections are measured. These are sampled as spans:

- The first five, and one in a hundred, the same on all ranks.
- On the rank that saw it, what ran in a profiler window.
- On the rank that saw it, what took over twice the median of the last hundred, and what ended in an
  error, each with a limit a minute.
- On the rank that saw it, what takes longer than everything sampled before, without a limit. The
  slowest one can thus be opened.

Outside steps the same holds by name. Time is the time of the events, so that a replay decides
alike.
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
"""Sampled because a section inside it is."""

_FEWEST_SPANS: Final = 20
"""Number of spans of a rank below which its part of a trace has no value."""
_RUN_PART: Final = 10
"""Inverse of the part of a step's budget that each window adds to the run's trace, which has many.
"""
_WINDOW: Final = 100
_ENOUGH: Final = 5
"""Number of known durations before one can be called slow."""
_LONGER: Final = 1.02
"""Minimum ratio to the longest sampled one: steps that drift would all be sampled otherwise."""
_MINUTE_NS: Final = 60_000_000_000


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of sampling; each is a field of Config and explained there."""

    trace_first: int = 5
    trace_every: int = 100
    trace_slow_ratio: float = 2.0
    slow_per_minute: int = 6
    errors_per_minute: int = 60
    max_spans_per_trace: int = 5000
    max_spans_per_rank: int = 2000

    def scheduled(self, index: int) -> str | None:
        """Return why the ``index``-th (from 0) is sampled on every rank; None if it is not."""
        if index < self.trace_first:
            return FIRST
        return EVERY if index % self.trace_every == 0 else None

    def spans_of_rank(self, world_size: int) -> int:
        """Return how many spans of one trace a rank sends."""
        return max(1, min(self.max_spans_per_rank, self.max_spans_per_trace // max(1, world_size)))

    def spans_of_step(self, rank: int, world_size: int, trace: bytes, reason: str) -> int:
        """Return how many spans of one step's trace ``rank`` sends; 1 is the step's own.

        A profiled step shows everything that a rank may: events of the profiler go under its
        sections. If an equal share has no value, eight ranks show the step completely. The trace id
        selects them, which is the same hash on every rank.
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
        """Return a window's maximum number of spans in the run's trace and in its steps' traces."""
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
    """Return why the ``index``-th step of phase ``key`` (or section ``key``) is sampled, or None.

    Stores the duration: slowness is judged by the hundred before it, without those that a profiler
    slowed down.
    """
    if profiled:
        return PROFILED
    lately = rank.step_ns.setdefault(key, [])
    # The shortest one is a bound for the median, and costs a tenth of it.
    slow = (
        len(lately) >= _ENOUGH
        and duration_ns > policy.trace_slow_ratio * min(lately)
        and duration_ns > policy.trace_slow_ratio * statistics.median(lately)
    )
    # Also of those that are sampled anyway: what is normal must not depend on what is shown.
    is_known = len(lately) >= _ENOUGH
    lately.append(duration_ns)
    del lately[:-_WINDOW]
    is_longest = not error and duration_ns > _LONGER * rank.longest_ns.get(key, 0)
    reason = policy.scheduled(index)
    # Errors before slowness: a failed step is often slow as well, and has the larger limit.
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
