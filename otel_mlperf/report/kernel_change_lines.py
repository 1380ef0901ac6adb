"""How are the kernels that changed between two runs named on a terminal, with the reason?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.report.kernel_names import short_name
from otel_mlperf.report.lines import LABEL, Line, broken, columns, labelled_lines, short
from otel_mlperf.report.quantities import duration, figures, signed

if TYPE_CHECKING:
    from otel_mlperf.analysis.comparison.comparison_shapes import (
        Comparison,
        KernelChange,
        ShapeBasis,
    )
    from otel_mlperf.report.lines import Style

_MOST_KERNELS: Final = 5
_LONGEST_SHAPE: Final = 60
_OTHER_NAME: Final = 40
_LEAST_NAME: Final = 16
_SAME: Final[dict[ShapeBasis, str]] = {
    "inputs": " of the same shape",
    "launch": " of the same grid or size",
    "": "; shapes are not known",
}


def kernel_change_lines(comparison: Comparison, width: int) -> list[Line]:
    """What all kernels take of a step, then those that changed, what costs most more first."""
    if comparison.kernels_ns is None:
        return []
    before_ns, after_ns = comparison.kernels_ns
    runs = (comparison.before, comparison.after)
    unit = "step" if all(run.profiled_steps for run in runs) else "window"
    more = f" ({signed(after_ns / before_ns - 1)} %)" if before_ns else ""
    said = f"all kernels {duration(before_ns)} → {duration(after_ns)} a {unit}{more}"
    if not comparison.kernels:
        said += ": none changed that matters"
    room = width - LABEL
    lines = labelled_lines("kernels", [said])
    for change in comparison.kernels[:_MOST_KERNELS]:
        first, *rest = _kernel_texts(change, unit, room)
        style: Style = "red" if change.after_ns > change.before_ns else "green"
        lines += labelled_lines("", [first], style)
        lines += labelled_lines(
            "", [f"  {part}" for told in rest for part in broken(told, room - 2)]
        )
    if (left_out := len(comparison.kernels) - _MOST_KERNELS) > 0:
        lines += labelled_lines("", [f"… {left_out} more: --json has them"])
    return lines


def _kernel_texts(change: KernelChange, unit: str, room: int) -> list[str]:
    """Its name and times; then why, and where it is launched."""
    times = f"{duration(change.before_ns)} → {duration(change.after_ns)} a {unit}"
    name = short_name(change.name, max(_LEAST_NAME, room - columns(times) - 2))
    of = " of ".join(filter(None, (change.operator, change.section)))
    lines = [f"{name}: {times}", f"{change.reason}: {_why(change)}" + (f", in {of}" if of else "")]
    if change.shapes is not None:
        lines.append(" → ".join(_shape(shape) for shape in change.shapes))
    return lines


def _why(change: KernelChange) -> str:
    before, after = change.before, change.after
    if before is None or after is None:
        return "not there before" if before is None else "not there any more"
    if change.reason == "count":
        return f"{figures(before.calls_per_step)} → {figures(after.calls_per_step)} calls"
    if change.reason == "replaced":
        return f"instead of {short_name(before.name, _OTHER_NAME)}"
    by_call = f"{duration(before.mean_ns)} → {duration(after.mean_ns)} a call"
    if change.reason == "shape":
        return by_call
    return by_call + _SAME[change.compared_by]


def _shape(shape: str) -> str:
    return short(shape.replace(", []", "").replace("c10::", ""), _LONGEST_SHAPE)
