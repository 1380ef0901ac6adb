"""Findings of ``torch.compile`` that compiles again for batches of other shapes.

A graph is compiled on its first call, and again for a batch of another size, such as the last batch
of an epoch. Three such steps after the first are usual. Where batch sizes vary throughout, or a
second shape follows the first immediately, even one such step is avoidable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_USUAL: Final = 3
_LARGE: Final = 0.2
"""Share of the steps' time from which a few compilations are a warning."""
_VARIED: Final = 0.1
"""Share of the steps with another batch size, from which it is not only the last batch of
a pass."""
_SOON: Final = 5
"""Steps in which no pass through the data ends: a second shape within them is no odd last batch."""


def find_recompilation(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if compilations exceed the row's share of the steps after the first."""
    row, series = row_of("recompilation"), numbers.steps
    compiling = [one.own_ns for one in numbers.sections if one.category == names.COMPILE]
    if series is None or not compiling:
        return []
    # If there is no warm-up, the first step is included although it has to compile.
    first = 0 if numbers.summary.warm_up is not None else 1
    compile_ns = np.sum(compiling, axis=0)[first:]
    compiled = np.flatnonzero(compile_ns)
    durations_ns = series.durations_ns[first:]
    share = float(compile_ns.sum() / durations_ns.sum()) if len(durations_ns) else 0.0
    if not row.holds(share):
        return []
    is_often = len(compiled) > _USUAL
    if not is_often and (share < _LARGE or not _is_varied(series.elements, compiled)):
        return []
    steps = series.numbers[first:][compiled]
    words = {"steps": f"{len(compiled):,}", "all": f"{len(durations_ns):,}", "value": share}
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(**words),
            action=row.action,
            evidence={
                "share": share,
                "steps": float(len(compiled)),
                "compile_ns": float(compile_ns[compiled].mean()),
            },
            where=Where(section=names.SPAN_COMPILE, steps=(int(steps[0]), int(steps[-1]))),
            # A graph for all shapes may be a little slower. The garbage of a new graph, and the
            # check which of many graphs fits, cost time in addition to the compilation.
            gain=Gain(low=0.8 * share, high=min(1.0, 1.15 * share)),
            command=f"otel-mlperf summary {numbers.summary.short_id} --calls",
        )
    ]


def _is_varied(elements: NDArray[np.float64], compiled: NDArray[np.intp]) -> bool:
    """Return whether shapes vary throughout; for unknown sizes, by the first recompilation."""
    known = elements[~np.isnan(elements)]
    if len(known) < len(elements):
        return bool(compiled[0] < _SOON)
    _, counts = np.unique(known, return_counts=True)
    return bool(1 - counts.max() / len(known) > _VARIED)
