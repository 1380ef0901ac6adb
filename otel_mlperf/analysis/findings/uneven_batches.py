"""Finding of padding in batches: its share of the elements, and the step time that it costs.

If batches differ in size, a line ``duration = a + b · elements`` is fitted through the steps: b is
the time per element. Padding is the number of elements of a batch beyond the elements of the
samples before collation. Without padding, a step is shorter by ``b · padding``.

If all batches have the same size, token counts give the padding as a share p of all positions. The
saving in forward and backward pass is p if each position costs the same time, and ``1 - (1 - p)²``
if each position is compared with all other positions, as in attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.findings.loader_causes import model_loader
from otel_mlperf.analysis.steps.step_shares import share_of_passes
from otel_mlperf.findings.finding import Finding, Gain
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_MIN_STEPS: Final = 30
_EXPLAINED: Final = 0.3
"""Minimum share of the variance of step times that the line must explain (r²)."""
_UNEVEN: Final = 0.1
_USUAL: Final = 0.98
"""Quantile of step times above which steps are outliers and excluded from the fit."""
_REMAINING: Final = 0.25
"""Fraction of the padding that remains if batches are only sorted roughly."""
_MIN_PADDING: Final = 0.2
"""Minimum padding as a share of all positions, because every batch has some padding."""
_COUNTED: Final = """SELECT sum(most) FROM (SELECT max(value) AS most FROM readings
    WHERE name = $name GROUP BY rank, restart)"""


class _Line(NamedTuple):
    per_element_ns: float
    explained: float
    elements: float
    deviation: float


def find_uneven_batches(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if padding costs more than the threshold share of a step."""
    return _by_size(numbers) or _by_content(numbers)


def _by_content(numbers: RunNumbers) -> list[Finding]:
    row, steps = row_of("uneven_batches"), numbers.summary.steps
    if steps is None or steps.count < _MIN_STEPS:
        return []
    padded, places = (
        float(numbers.store.rows(_COUNTED, name=metric.name)[0][0] or 0.0)
        for metric in (names.PADDED, names.PLACES)
    )
    padding = padded / places if places else 0.0
    computing = share_of_passes(steps)
    share = padding * computing
    if padding < _MIN_PADDING or not row.holds(share):
        return []
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=(
                f"{padding:.0%} of the elements of a batch are padding, which likely costs "
                f"{share:.0%} of a step"
            ),
            action=row.action,
            evidence={"share": share, "padding": padding, "places": places},
            gain=Gain(
                low=(1 - _REMAINING) * share, high=computing * (1 - (1 - padding) * (1 - padding))
            ),
        )
    ]


def _by_size(numbers: RunNumbers) -> list[Finding]:
    row, model, steps = row_of("uneven_batches"), model_loader(numbers), numbers.summary.steps
    if model is None or steps is None or model.use.elements is None:
        return []
    line = _line(numbers)
    if line is None or line.explained < _EXPLAINED or line.deviation < _UNEVEN * line.elements:
        return []
    padding = 1.0 - model.use.elements * model.batches / line.elements
    share = padding * line.elements * line.per_element_ns / steps.mean_ns
    # Negative padding: samples were transformed so that they have more elements than their batch.
    if padding <= 0 or not row.holds(share) or not model.is_worth(share):
        return []
    share = min(share, 1.0)
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(padding=padding, value=share),
            action=row.action,
            evidence={
                "share": share,
                "padding": padding,
                "elements": line.elements,
                "sample_elements": model.use.elements * model.batches,
                "element_ns": line.per_element_ns,
                "r_squared": line.explained,
            },
            gain=Gain(low=(1 - _REMAINING) * share, high=share),
        )
    ]


def _line(numbers: RunNumbers) -> _Line | None:
    steps = numbers.steps
    if steps is None or len(steps.numbers) < _MIN_STEPS or np.isnan(steps.elements).any():
        return None
    waits = [one.own_ns for one in numbers.sections if one.category == names.DATA_LOADING]
    x, y = steps.elements, steps.durations_ns - sum(waits)
    # Steps that are delayed for another reason would distort the line.
    usual = y <= np.quantile(y, _USUAL)
    x, y = x[usual], y[usual]
    if not x.std() or not y.std():
        return None
    correlation = float(np.corrcoef(x, y)[0, 1])
    slope = correlation * float(y.std() / x.std())
    mean = float(steps.elements.mean())
    return _Line(max(0.0, slope), correlation**2, mean, float(x.std()))
