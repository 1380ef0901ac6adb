"""Chart data of a run's page as JSON-ready values, and SVG paths of its histograms.

Times are in seconds since the start of the run, all other values in the unit of their chart.
Numbers have at most six significant digits, which is more than a screen can show, and halves the
size of the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.quantities import duration
from otel_mlperf.report.page.tables import section_colors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.analysis.page.duration_histograms import DurationHistogram
    from otel_mlperf.analysis.page.line_buckets import Chart, Line
    from otel_mlperf.analysis.page.page_contents import RunCourse, RunPage
    from otel_mlperf.analysis.page.rank_map import RankMap
    from otel_mlperf.analysis.page.step_buckets import StepBuckets

_COLORS: Final = 8
HISTOGRAM_HEIGHT: Final = 60
"""Height of a histogram in units of the SVG path; the bars are 1 unit apart."""
_HISTOGRAM_BAR: Final = 0.9


def chart_data(page: RunPage) -> dict[str, Any]:
    """Return the page's charts by id, the run's events (``moments``), and the run's duration."""
    data = course_data(page)
    if page.ranks is not None:
        data["charts"]["rank-map"] = _rank_map(page.ranks, page.begin_ns)
    return data


def course_data(course: RunCourse) -> dict[str, Any]:
    """Return the same keys as ``chart_data``, with only those charts whose x axis is time."""
    begin = course.begin_ns
    charts: dict[str, Any] = {}
    if course.steps is not None:
        charts |= _step_charts(course.steps, begin, section_colors(course.summary))
    for chart in course.charts:
        charts[chart.id] = _line_chart(chart, begin)
    moments = [
        [moment.kind, moment.name, *_seconds([moment.time_ns], begin), moment.duration_ns / 1e9]
        for moment in course.moments
    ]
    return {"charts": charts, "moments": moments, "wall_s": course.summary.duration_ns / 1e9}


def points_text(steps: StepBuckets) -> str:
    """Return a sentence on how many steps each point of the step charts represents."""
    if steps.size == 1:
        return "Each point is one step"
    return f"Each point represents {steps.size:,} consecutive steps"


def _labels(first: list[int], last: list[int]) -> list[str]:
    return [
        f"step {low}" if low == high else f"steps {low}–{high}"
        for low, high in zip(first, last, strict=True)
    ]


def _rank_map(ranks: RankMap, begin_ns: int) -> dict[str, Any]:
    return {
        "kind": "map",
        "unit": "ns",
        "x": _seconds(ranks.start_ns, begin_ns),
        "labels": _labels(ranks.first, ranks.last),
        "rows": [f"rank {rank}" for rank in ranks.ranks],
        "mean": [_short(row) for row in ranks.mean_ns],
    }


def _step_charts(steps: StepBuckets, begin_ns: int, colors: dict[str, str]) -> dict[str, Any]:
    times = _seconds(steps.start_ns, begin_ns)
    band = {
        "name": "step",
        "color": "step",
        "low": _short(steps.min_ns),
        "mean": _short(steps.mean_ns),
        "high": _short(steps.max_ns),
    }
    stack = [
        {
            "name": one.name,
            "color": colors.get(one.name, "none"),
            "mean": _short(one.mean_ns),
        }
        for one in steps.sections
    ]
    shared = {"unit": "ns", "x": times, "labels": _labels(steps.first, steps.last)}
    return {
        "steps": {"kind": "band", "series": [band], **shared},
        "sections": {"kind": "stack", "series": stack, **shared},
    }


def _line_chart(chart: Chart, begin_ns: int) -> dict[str, Any]:
    """Return a chart with the times of all lines; a line without a point at a time has None."""
    times = sorted({at for line in chart.lines for at in line.time_ns})
    series = [
        {
            "name": line.name,
            "color": f"own{at % _COLORS}",
            "mean": _placed(line, line.mean, times),
            **_reach(line, times),
        }
        for at, line in enumerate(chart.lines)
    ]
    return {
        "kind": "band",
        "unit": chart.unit,
        "x": _seconds(times, begin_ns),
        "labels": [],
        "series": series,
        "whole_run": chart.unit != "",
    }


def _reach(line: Line, times: list[int]) -> dict[str, Any]:
    """Return a line's minima and maxima; empty if no bucket has more than one value."""
    if line.min == line.max:
        return {}
    return {"low": _placed(line, line.min, times), "high": _placed(line, line.max, times)}


def _placed(line: Line, values: list[float], times: list[int]) -> list[float | None]:
    known = dict(zip(line.time_ns, _short(values), strict=True))
    return [known.get(at) for at in times]


def _seconds(times_ns: Iterable[int], begin_ns: int) -> list[float]:
    return [round((at - begin_ns) / 1e9, 4) for at in times_ns]


def _short(values: Iterable[float | None]) -> list[float | None]:
    short = (None if value is None else float(f"{value:.6g}") for value in values)
    return [int(value) if value is not None and value.is_integer() else value for value in short]


def histogram_title(histogram: DurationHistogram) -> str:
    """Return a section's name as title, with the phase if the section is in steps."""
    if not histogram.in_step:
        return histogram.name
    return f"{histogram.name} in {histogram.place} steps"


def histogram_path(histogram: DurationHistogram) -> str:
    """Return all bars of a histogram as one SVG path, the highest with ``HISTOGRAM_HEIGHT``."""
    max_count, high = max(histogram.counts), HISTOGRAM_HEIGHT
    return "".join(
        f"M{at} {high}v-{max(1.0, high * count / max_count):.1f}h{_HISTOGRAM_BAR}V{high}z"
        for at, count in enumerate(histogram.counts)
        if count
    )


def histogram_note(histogram: DurationHistogram) -> str:
    """Return the number of durations in a histogram, and the range of its highest bar, as text."""
    at = histogram.counts.index(max(histogram.counts))
    low, high = histogram.edges_ns[at : at + 2]
    return (
        f"{sum(histogram.counts):,} durations; most frequent: {duration(low)} to {duration(high)}"
    )


def histogram_ends(histogram: DurationHistogram) -> tuple[str, str]:
    """Return the labels of a histogram's left and right edge, which are durations."""
    return duration(histogram.edges_ns[0]), duration(histogram.edges_ns[-1])
