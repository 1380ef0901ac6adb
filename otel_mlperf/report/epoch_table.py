"""How do the epochs of a run look on a terminal?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.report.quantities import duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.summary.epochs import EpochFigures
    from otel_mlperf.report.lines import Line

_MOST: Final = 40
_WIDTH: Final = 8


def epoch_lines(epochs: list[EpochFigures]) -> list[Line]:
    """A line for each, the last ones where there are many."""
    if not epochs:
        return [[("  no step has an epoch: om.epochs() counts them", "dim")]]
    times, peaks = ("total", "mean", "sd", "min", "max"), ("memory", "gpu", "held")
    lines: list[Line] = [[(_columns("epoch", "steps", times, peaks), "dim")]]
    if left_out := epochs[:-_MOST]:
        lines.append([(f"  {len(left_out)} earlier ones: summary --json has all of them", "dim")])
    lines += [[(_row(one), "")] for one in epochs[-_MOST:]]
    return lines


def _row(one: EpochFigures) -> str:
    times = (one.total_ns, one.mean_ns, one.deviation_ns, one.min_ns, one.max_ns)
    peaks = (one.memory_peak_bytes, one.cuda_peak_bytes, one.cuda_reserved_bytes)
    sizes = ["–" if peak is None else size(peak, 1024) for peak in peaks]
    return _columns(f"{one.epoch}", f"{one.steps:,}", [*map(duration, times)], sizes)


def _columns(epoch: str, steps: str, times: Sequence[str], peaks: Sequence[str]) -> str:
    cells = [f"{time:>{_WIDTH}}" for time in times] + [f"{peak:>{_WIDTH + 1}}" for peak in peaks]
    return f"  {epoch:>5}{steps:>6}" + "".join(cells)
