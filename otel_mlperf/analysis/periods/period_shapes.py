"""Data types of a run's figures by period, as ``--json`` prints them."""

from __future__ import annotations

import msgspec

from otel_mlperf.analysis.summary.call_shapes import CallFigures  # noqa: TC001 - msgspec reads it


class PeriodSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one phase that ended in a period.

    A step of several ranks ends when its last rank ends it. As in the summary, durations are those
    of successful steps on all ranks, without the warm-up. If all steps of the run failed, all of
    them count.
    """

    count: int
    """Number of steps of one rank, summed over its restarts."""
    failed: int
    """Number of steps that ended in an exception on at least one rank."""
    samples: int | None
    """Sum over these steps and all ranks; None: unknown."""
    tokens: int | None
    measured: int
    """Number of steps of all ranks from which the following figures are computed."""
    sum_ns: int
    mean_ns: float | None
    """None: no step was measured."""
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    wait_ns: int
    """Part of ``sum_ns`` in which the steps waited for data on their own thread."""
    wait_share: float | None
    samples_per_s: float | None
    """Rate over the time in steps, summed over all ranks."""
    tokens_per_s: float | None


class PeriodProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Resource use of the training processes in a period, without their workers."""

    cpus: float | None
    """CPU time of all threads divided by the time between readings; mean over the processes."""
    memory_peak_bytes: int | None
    """Peak resident memory of the largest process."""


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """A period of wall-clock time."""

    start_ns: int
    end_ns: int
    """Start of the next period."""
    lived_ns: int
    """Time in the period in which at least one process of the run existed."""
    steps: PeriodSteps | None
    """None: no step ended in the period."""
    requests: list[CallFigures]
    """Requests that ended in the period, by name and bound."""
    process: PeriodProcess


class Periods(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="periods/1"):
    """Figures of a run by period; their sums are the figures of the whole run."""

    id: str
    short_id: str
    name: str
    outcome: str
    rank: int | None
    """The only rank of the figures; None: all ranks."""
    phase: str | None
    """Phase of the steps; None: the run has no steps, or only its requests were selected."""
    every_ns: int
    utc_offset_s: int
    """UTC offset of local time at the run's start, with which all periods are aligned."""
    periods: list[Period]
    """Periods from the run's first to its last, without a gap."""
    undated_requests: int
    """Number of requests in no period: earlier versions did not record request timestamps."""
    missing: list[str]
    """Records that existed when the figures were requested and are not included, as text."""
