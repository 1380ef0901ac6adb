"""Contents of a run's page, and the run's moments: epochs, checkpoints, marks, warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import asdict

from otel_mlperf import names
from otel_mlperf.analysis.comparison.comparison import compare_runs
from otel_mlperf.analysis.comparison.comparison_shapes import (  # noqa: TC001 - msgspec reads it
    Comparison,
)
from otel_mlperf.analysis.comparison.run_measures import measure_run
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.analysis.page.duration_histograms import DurationHistogram, read_histograms
from otel_mlperf.analysis.page.line_buckets import (
    Chart,
    read_reading_charts,
    read_value_charts,
)
from otel_mlperf.analysis.page.rank_map import RankMap, read_rank_map
from otel_mlperf.analysis.page.step_buckets import StepBuckets, read_step_buckets
from otel_mlperf.analysis.profiles.hot_spots import HotSection, find_hot
from otel_mlperf.analysis.profiles.kernel_totals import read_kernels
from otel_mlperf.analysis.profiles.window_shapes import Kernels  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.marked_points import of_first_rank
from otel_mlperf.analysis.summary.summary_shapes import Summary  # noqa: TC001 - msgspec reads it
from otel_mlperf.errors import NoSuchWindow
from otel_mlperf.run_files.growth_file import MemoryGrowth  # noqa: TC001 - msgspec reads it
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.store.run_folders import RunFolder


_MAX_MOMENTS: Final = 300
_EPOCHS: Final = """SELECT epoch, min(start_ns), max(end_ns) FROM steps
WHERE phase = $phase AND epoch IS NOT NULL GROUP BY epoch, restart ORDER BY min(start_ns)"""
# Consecutive steps of another phase, without a step of the main phase between them.
_PHASES: Final = """WITH ordered AS (
    SELECT phase, start_ns, end_ns,
           sum(CASE WHEN phase = $phase THEN 1 ELSE 0 END) OVER (ORDER BY start_ns) AS before
    FROM steps WHERE rank = (SELECT min(rank) FROM steps)
)
SELECT phase, min(start_ns) AS begin_ns, max(end_ns) FROM ordered WHERE phase <> $phase
GROUP BY phase, before ORDER BY begin_ns"""
# One row represents all calls since the previous flush; its start is that of the first call.
_OUTSIDE: Final = """SELECT name, start_ns, sum_ns, count FROM sections
WHERE n IS NULL AND NOT beside AND category = $category
AND rank = (SELECT min(rank) FROM sections) ORDER BY start_ns"""
_RESTARTS: Final = """SELECT restart, min(start_ns) FROM processes WHERE restart > 0
GROUP BY restart ORDER BY restart"""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """An event on the page's time axis."""

    kind: str
    """``epoch``, ``validation``, ``checkpoint``, ``mark``, ``restart`` or ``warning``."""
    name: str
    time_ns: int
    """Unix time."""
    duration_ns: int
    """0: no duration, or an unknown one."""


def read_moments(store: Store, summary: Summary) -> list[Moment]:
    """Return the moments of a run in time order, at most ``_MAX_MOMENTS`` of each kind."""
    phase = summary.steps.phase if summary.steps else ""
    found = [
        Moment(kind="epoch", name=f"epoch {epoch}", time_ns=begin, duration_ns=end - begin)
        for epoch, begin, end in store.rows(_EPOCHS, phase=phase)[:_MAX_MOMENTS]
    ]
    validations = [
        Moment(kind="validation", name=name, time_ns=begin, duration_ns=end - begin)
        for name, begin, end in store.rows(_PHASES, phase=phase)[:_MAX_MOMENTS]
    ]
    found += validations or _outside(store, "validation", names.PHASE)
    found += _outside(store, "checkpoint", names.CHECKPOINT)
    found += [
        Moment(kind="restart", name=f"restart {restart}", time_ns=begin, duration_ns=0)
        for restart, begin in store.rows(_RESTARTS)[:_MAX_MOMENTS]
    ]
    return sorted(
        [*found, *_marks(summary), *_warnings(summary)], key=lambda moment: moment.time_ns
    )


def _outside(store: Store, kind: str, category: str) -> list[Moment]:
    return [
        Moment(
            kind=kind,
            name=f"{name} ×{count}" if count > 1 else name,
            time_ns=begin,
            # With several calls, only the start of the first one is known.
            duration_ns=spent if count == 1 else 0,
        )
        for name, begin, spent, count in store.rows(_OUTSIDE, category=category)[:_MAX_MOMENTS]
    ]


def _marks(summary: Summary) -> list[Moment]:
    return [
        Moment(kind="mark", name=mark.name, time_ns=mark.time_ns, duration_ns=0)
        for mark in of_first_rank(summary.marks)
    ][:_MAX_MOMENTS]


def _warnings(summary: Summary) -> list[Moment]:
    return [
        Moment(
            kind="warning",
            name=finding.id.replace("_", " "),
            time_ns=summary.started_ns + warned.after_ns,
            duration_ns=warned.held_ns,
        )
        for finding in summary.findings
        for warned in finding.warned
    ][:_MAX_MOMENTS]


class RunCourse(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run, with its charts over time and its moments."""

    summary: Summary
    begin_ns: int
    """Unix time at which the charts start."""
    steps: StepBuckets | None
    """None for a run without steps."""
    charts: list[Chart]
    """Charts of readings, then of logged values."""
    moments: list[Moment]


class RunPage(RunCourse, frozen=True, kw_only=True):
    """Complete contents of a run's page."""

    histograms: list[DurationHistogram]
    """Histograms of the steps, then of sections with most time."""
    ranks: RankMap | None
    """None for a run of one rank."""
    kernels: Kernels | None
    """None: no profiler window was read."""
    hot: list[HotSection]
    """Profiled sections, longest first."""
    growths: list[MemoryGrowth]
    """Memory growth between two points, sorted by the later point."""
    comparisons: list[Comparison]
    """Comparison of each other run with the first, in the given order."""


def read_page(runs: Sequence[RunFolder]) -> RunPage:
    """Return the page about the last of ``runs``, with a comparison of each run with the first.

    Raises:
        StoreError: a file of a run cannot be read.
    """
    *others, run = runs
    store = Store(run.path)
    summary = judge_run(run, store=store)
    steps, has_warm_up = summary.steps, summary.warm_up is not None
    hot = find_hot(run)
    return RunPage(
        **asdict(read_course(store, summary)),
        histograms=read_histograms(store, steps, has_warm_up=has_warm_up),
        ranks=read_rank_map(store, steps, has_warm_up=has_warm_up) if steps else None,
        kernels=_read_kernels(run) if summary.windows else None,
        hot=hot.sections,
        growths=hot.growths,
        comparisons=_compare(runs) if others else [],
    )


def read_course(store: Store, summary: Summary) -> RunCourse:
    """Return the charts and moments of a run.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    begin, end = summary.started_ns, summary.started_ns + summary.duration_ns
    steps, has_warm_up = summary.steps, summary.warm_up is not None
    return RunCourse(
        summary=summary,
        begin_ns=begin,
        steps=read_step_buckets(store, steps, has_warm_up=has_warm_up) if steps else None,
        charts=[
            *read_reading_charts(store, begin, end),
            *read_value_charts(store, begin, end),
        ],
        moments=read_moments(store, summary),
    )


def _compare(runs: Sequence[RunFolder]) -> list[Comparison]:
    first, *others = map(measure_run, runs)
    return [compare_runs(first, other) for other in others]


def _read_kernels(run: RunFolder) -> Kernels | None:
    try:
        return read_kernels(run, run.facts.name)
    except NoSuchWindow:
        return None
