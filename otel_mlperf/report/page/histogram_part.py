"""Drawings of histograms of durations on the page: paths, titles and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import duration

if TYPE_CHECKING:
    from otel_mlperf.analysis.page.duration_histograms import DurationHistogram

HEIGHT: Final = 60
"""Of a drawing, in the units of its paths; a bar is 1 wide."""
_BAR: Final = 0.9


def title(histogram: DurationHistogram) -> str:
    """What the durations are of."""
    if not histogram.in_step:
        return histogram.name
    return f"{histogram.name} in {histogram.place} steps"


def path(histogram: DurationHistogram) -> str:
    """All bars as one path; the longest is as high as the drawing."""
    most = max(histogram.counts)
    return "".join(
        f"M{at} {HEIGHT}v-{max(1.0, HEIGHT * count / most):.1f}h{_BAR}V{HEIGHT}z"
        for at, count in enumerate(histogram.counts)
        if count
    )


def note(histogram: DurationHistogram) -> str:
    """The number of durations and the bar that has most of them."""
    at = histogram.counts.index(max(histogram.counts))
    low, high = histogram.edges_ns[at : at + 2]
    return f"{sum(histogram.counts):,}; most between {duration(low)} and {duration(high)}"


def ends(histogram: DurationHistogram) -> tuple[str, str]:
    """The labels of the left and the right edge."""
    return duration(histogram.edges_ns[0]), duration(histogram.edges_ns[-1])
