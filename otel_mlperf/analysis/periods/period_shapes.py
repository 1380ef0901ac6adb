"""Data types of a run's figures by period, as ``--json`` prints them."""

from __future__ import annotations

import msgspec

from otel_mlperf.analysis.summary.call_shapes import CallFigures  # noqa: TC001 - msgspec reads it


class PeriodSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one phase that ended in a period.

    One that several ranks make ends when the last of them has ended it. Durations are those of the
    ranks' steps that did not fail, without a slow first one, as in the summary; of a run whose
    steps all failed those of all.
    """

    count: int
    """Steps of one rank, those of each start."""
    failed: int
    """Of these: an exception ended it on some rank."""
    samples: int | None
    """In all of them, of all ranks; None: not known."""
    tokens: int | None
    measured: int
    """Steps of all ranks that the figures below are about."""
    sum_ns: int
    mean_ns: float | None
    """None: none was measured."""
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    wait_ns: int
    """Of the sum, what the steps waited for data on their own thread."""
    wait_share: float | None
    samples_per_s: float | None
    """Of the time in steps, over all ranks."""
    tokens_per_s: float | None


class PeriodProcess(msgspec.Struct, frozen=True, kw_only=True):
    """What the training processes used in a period, without their workers."""

    cpus: float | None
    """CPU time of all threads / time, between readings; of several processes the mean."""
    memory_peak_bytes: int | None
    """The most that was resident, of the process that had most."""


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """A period of wall-clock time."""

    start_ns: int
    end_ns: int
    """Where the next one begins."""
    lived_ns: int
    """How much of it a process of the run was there; 0: none was."""
    steps: PeriodSteps | None
    """None: none ended in it."""
    requests: list[CallFigures]
    """Those that ended in it, by name and bound."""
    process: PeriodProcess


class Periods(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="periods/1"):
    """What a run did, period by period; their sums are the figures of the whole run."""

    id: str
    short_id: str
    name: str
    outcome: str
    rank: int | None
    """The only rank that the figures are about; None: all of them."""
    phase: str | None
    """Of the steps; None: the run has none, or requests were asked for."""
    every_ns: int
    utc_offset_s: int
    """Of the clock on which the periods begin: local time when the run began."""
    periods: list[Period]
    """From the first in which the run was there to the last, without a gap."""
    undated_requests: int
    """Requests in no period: an earlier version recorded them, which kept no times."""
    missing: list[str]
    """What had been recorded and was not stored in time for this answer."""
