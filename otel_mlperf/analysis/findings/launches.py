"""Does a GPU wait for the host to tell it what to do, one small piece after the other?

To launch a kernel takes the host some microseconds, with Python and autograd around it tens of
them: where the kernels are shorter than that, forward, backward and optimizer take as long as the
host needs, and the GPU idles in between. A CUDA graph launches all of it at once: those sections
then take what the GPU has work for. That is bounded from above by its utilization, so the
difference is surely won, if all of the GPU's work is theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.findings.gpu_busy import read_gpu_busy
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_FEWEST: Final = 10
"""Steps from which on there is anything to say about a usual one."""
_COMPUTING: Final = (names.FORWARD, names.BACKWARD, names.OPTIMIZER)
_MOST_BUSY: Final = 0.7
"""Utilization from which on nobody knows how much of a GPU idles."""
_LEAST_WON: Final = 0.75
"""Part of the difference: a graph has to be launched, too, and batches copied into it."""


def find_launches(numbers: RunNumbers) -> list[Finding]:
    """One, of the rank whose GPU has least to do while the host launches work for it."""
    steps, row = numbers.summary.steps, row_of("small_operators")
    busy = read_gpu_busy(numbers)
    if steps is None or steps.count < _FEWEST or not busy:
        return []
    rank = min(busy, key=lambda one: busy[one])
    sections = [
        one
        for one in steps.rows
        if one.category in _COMPUTING or one.name in _COMPUTING
        if not one.beside
    ]
    computing = sum(one.share for one in sections)
    won = computing - busy[rank]
    if busy[rank] > _MOST_BUSY or not row.holds(won):
        return []
    longest = max(sections, key=lambda one: one.share)
    how = (
        f"the GPU has work for {busy[rank]:.0%} of the time, while forward, backward and "
        f"optimizer take the host {computing:.0%} of a step, {longest.name} most"
    )
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(how=how),
            action=row.action,
            evidence={"gpu_busy": busy[rank], "computing_share": computing, "share": won},
            where=Where(section=longest.name, rank=rank),
            gain=Gain(low=_LEAST_WON * won, high=computing - busy[rank] / 2),
            command=f"otel-mlperf show {numbers.summary.short_id}",
        )
    ]
