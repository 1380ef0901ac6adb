"""Drawings of histograms of durations on the page: paths, titles and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import duration

if TYPE_CHECKING:
    from otel_mlperf.analysis.page.duration_histograms import DurationHistogram

HEIGHT: Final = 60
"""Height of a drawing in path units; a bar is 1 unit wide."""
_BAR: Final = 0.9


def title(histogram: DurationHistogram) -> str:
    """Return the name of the durations."""
    if not histogram.in_step:
        return histogram.name
    return f"{histogram.name} in {histogram.place} steps"


def path(histogram: DurationHistogram) -> str:
    """Return all bars as one path; the highest bar has the height of the drawing."""
    most = max(histogram.counts)
    return "".join(
        f"M{at} {HEIGHT}v-{max(1.0, HEIGHT * count / most):.1f}h{_BAR}V{HEIGHT}z"
        for at, count in enumerate(histogram.counts)
        if count
    )


def note(histogram: DurationHistogram) -> str:
    """Return the number of durations and the range of the highest bar."""
    at = histogram.counts.index(max(histogram.counts))
    low, high = histogram.edges_ns[at : at + 2]
    return f"{sum(histogram.counts):,}; most between {duration(low)} and {duration(high)}"


def ends(histogram: DurationHistogram) -> tuple[str, str]:
    """Return the labels of the left and the right edge."""
    return duration(histogram.edges_ns[0]), duration(histogram.edges_ns[-1])
