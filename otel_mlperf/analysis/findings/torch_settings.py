"""Findings of costly PyTorch settings, of types and of repeated compilation.

*Anomaly detection* stores a Python stack for each operation. It also checks each gradient for NaN,
which synchronizes with a GPU. Measured cost on two machines: 56 to 158 µs per operation, more for
deeper calls.

*Float32 products*: without TF32, matrix products take longer by the ratio of the peaks of a device
with tensor cores. Work around the products also becomes faster in a smaller type. There is no gain
if the host sets the pace. A gain that exceeds the time of forward and backward passes is discarded
as miscounted.

*Float64*: products and memory traffic in float64 take about twice as long as in float32 on a CPU,
and longer on most GPUs.

*Dense gradients of embeddings*: the optimizer updates all rows of a table, and the backward pass
fills a gradient of the table's size, although a batch uses few rows.

*Activation checkpointing* computes the forward pass of the wrapped parts again in the backward
pass, which saves memory. The time depends on how much of the model is wrapped, which is not known.

*Repeated compilation*: torch.compile compiles a graph on its first call, and again for a batch of
another size, such as the last batch of an epoch. Up to three compiling steps after the first are
usual. If batch sizes vary throughout, or a second shape follows the first immediately, fewer are
also avoidable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.findings.gpu_busy import OWN_GPUS, read_gpu_busy
from otel_mlperf.analysis.steps.step_shares import share_of, share_of_passes
from otel_mlperf.device_peaks import find_peak
from otel_mlperf.findings.finding import WIDEST, Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of
from otel_mlperf.store.table_reader import label_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_shapes import StepFigures
    from otel_mlperf.findings.finding_row import FindingRow


_MIN_STEPS: Final = 10
_MIN_NS, _MAX_NS = 50_000.0, 160_000.0
"""Cost of anomaly detection per operation: minimum and maximum."""
_REACHED: Final = 0.6
"""Fraction of the peak that float32 products reach."""
_MIN_BUSY: Final = 0.7
"""GPU utilization from which the GPU, and not the host, sets the pace."""
_DEVICES: Final = f"""WITH {OWN_GPUS},
known AS (SELECT DISTINCT labels ->> $gpu AS gpu, labels ->> $model AS model FROM readings
    WHERE name = $limit)
SELECT own.rank, any_value(known.model) FROM own JOIN known USING (gpu) GROUP BY own.rank"""
_PASSES: Final = """SELECT rank, sum(count) / count(DISTINCT (restart, n)) FROM sections
WHERE phase = $phase AND name = $backward AND n > 0 GROUP BY rank"""


def find_anomaly_detection(numbers: RunNumbers) -> list[Finding]:
    """Return one finding for the first rank with anomaly detection in its latest autograd graph."""
    steps, row = numbers.summary.steps, row_of("anomaly_detection")
    on = [rank for rank, is_on in numbers.latest(names.AUTOGRAD_ANOMALY).items() if is_on]
    operations = _per_step(numbers, names.GRAPH_NODES) if on else {}
    rank = next((rank for rank in on if rank in operations), None)
    if steps is None or rank is None:
        return []
    most = share_of_passes(steps) or 1.0
    low, high = (min(ns * operations[rank] / steps.mean_ns, most) for ns in (_MIN_NS, _MAX_NS))
    if not row.holds(low):
        return []
    return [
        _finding(
            numbers,
            row,
            Where(section=names.BACKWARD, rank=rank),
            Gain(low=low, high=min(high, low + WIDEST)),  # few operations cost the most
            {"operations": operations[rank], "step_ns": steps.mean_ns},
        )
    ]


def find_full_precision(numbers: RunNumbers) -> list[Finding]:
    """Return one finding for the first rank whose float32 products would be much faster in TF32."""
    steps, row = numbers.summary.steps, row_of("full_precision")
    counted = _per_step(numbers, names.GRAPH_FLOAT32)
    if steps is None or not counted:
        return []
    devices, busy = _devices(numbers), read_gpu_busy(numbers)
    most = share_of_passes(steps) or 1.0
    for rank, operations in counted.items():
        device = devices.get(rank) or ""
        exact, reduced = find_peak(device, "float32"), find_peak(device, "tf32")
        if exact is None or reduced is None or busy.get(rank, 1.0) < _MIN_BUSY:
            continue
        saved_s = operations / exact.flops_per_s - operations / reduced.flops_per_s
        share = saved_s * 1e9 / steps.mean_ns
        if row.holds(share) and share <= most:
            evidence = {
                "operations": operations,
                "float32_flops_per_s": exact.flops_per_s,
                "tf32_flops_per_s": reduced.flops_per_s,
            }
            gain = Gain(low=share, high=min(most, share / _REACHED))
            return [_finding(numbers, row, Where(rank=rank), gain, evidence, device=device)]
    return []


_DOUBLE: Final = (0.3, 0.6)
"""Share of passes and updates that float32 saves: lower and upper bound."""
_MIN_UPDATE: Final = 0.6
"""Minimum time to update an unused row, relative to the mean time of all parameters."""
_MAX_FILL: Final = 0.6
"""Maximum time of a backward pass for an unused row, relative to that mean."""
_RECOMPUTED: Final = (0.6, 1.5)
"""Time of the recomputation relative to the forward pass: lower and upper bound."""


def find_double_precision(numbers: RunNumbers) -> list[Finding]:
    """Return one finding for the first rank whose model computes in float64."""

    def bounds(steps: StepFigures, double: float) -> tuple[float, float]:
        whole = share_of_passes(steps) + share_of(steps, names.OPTIMIZER)
        return _DOUBLE[0] * whole * double, _DOUBLE[1] * whole * double

    return _of_setting(numbers, "double_precision", names.GRAPH_DOUBLE, bounds)


def find_dense_embeddings(numbers: RunNumbers) -> list[Finding]:
    """Return one finding for the first rank that updates unused rows of embedding tables."""

    def bounds(steps: StepFigures, unused: float) -> tuple[float, float]:
        update = unused * share_of(steps, names.OPTIMIZER)
        return _MIN_UPDATE * update, update + _MAX_FILL * unused * share_of(steps, names.BACKWARD)

    return _of_setting(numbers, "dense_embeddings", names.GRAPH_UNUSED_ROWS, bounds)


def find_recomputed_activations(numbers: RunNumbers) -> list[Finding]:
    """Return one finding for the first rank that computes activations a second time."""

    def bounds(steps: StepFigures, _: float) -> tuple[float, float]:
        forward = share_of(steps, names.FORWARD)
        return _RECOMPUTED[0] * forward, _RECOMPUTED[1] * forward

    return _of_setting(numbers, "recomputed_activations", names.GRAPH_CHECKPOINTS, bounds)


def _of_setting(
    numbers: RunNumbers,
    rule: str,
    metric: names.Metric,
    bounds: Callable[[StepFigures, float], tuple[float, float]],
) -> list[Finding]:
    """Return one finding of ``rule`` for the first rank with ``metric`` above 0.

    ``bounds`` returns lower and upper bound of the gain, as shares of a step, for a value of the
    metric. The lower bound is compared with the threshold.
    """
    steps, row = numbers.summary.steps, row_of(rule)
    found = {rank: value for rank, value in numbers.latest(metric).items() if value}
    if steps is None or steps.count < _MIN_STEPS or not found:
        return []
    rank, value = next(iter(found.items()))
    low, high = (min(1.0, share) for share in bounds(steps, value))
    if not row.holds(low):
        return []
    evidence = {"share" if metric.unit == "1" else "calls": value}
    gain = Gain(low=low, high=high)
    return [_finding(numbers, row, Where(rank=rank), gain, evidence, share=value)]


def _finding(
    numbers: RunNumbers,
    row: FindingRow,
    where: Where,
    gain: Gain,
    evidence: dict[str, float],
    **fields: object,
) -> Finding:
    """Return a finding of ``row``, whose summary contains the minimum gain and ``fields``."""
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(value=gain.low, **fields),
        action=row.action,
        evidence=evidence,
        where=where,
        gain=gain,
        command=f"otel-mlperf summary {numbers.summary.short_id}",
    )


def _per_step(numbers: RunNumbers, metric: names.Metric) -> dict[int, float]:
    """Return, by rank, the latest value of ``metric`` times the number of backward passes per step.

    The result is empty if steps are too few or all values are 0. Without sections of backward
    passes, one pass per step is assumed.
    """
    steps, latest = numbers.summary.steps, numbers.latest(metric)
    if steps is None or steps.count < _MIN_STEPS or not any(latest.values()):
        return {}
    passes = dict(numbers.store.rows(_PASSES, phase=steps.phase, backward=names.BACKWARD))
    return {rank: value * passes.get(rank, 1.0) for rank, value in latest.items()}


def _devices(numbers: RunNumbers) -> dict[int, str | None]:
    return dict(
        numbers.store.rows(
            _DEVICES,
            gpu=label_path(names.HW_ID),
            model=label_path(names.HW_MODEL),
            memory=names.CUDA_MEMORY.name,
            limit=names.GPU_MEMORY_LIMIT.name,
        )
    )


_USUAL: Final = 3
"""Usual number of compiling steps after the first, for odd last batches and a first validation. Up
to this number only compilations with a large share are reported, and below it only if sizes vary as
well."""
_LARGE: Final = 0.2
_VARIED: Final = 0.1
"""Share of the steps without the most common batch size above which sizes vary throughout."""
_SOON: Final = 5
"""Number of first steps within which a second shape is not the odd last batch of a pass."""


def find_recompilation(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if compilations exceed the threshold share of the steps' time."""
    row, series = row_of("recompilation"), numbers.steps
    compiling = [one.own_ns for one in numbers.sections if one.category == names.COMPILE]
    if series is None or not compiling:
        return []
    # Without a separate warm-up step, the series includes the first step, which has to compile.
    first = 0 if numbers.summary.warm_up is not None else 1
    compile_ns = np.sum(compiling, axis=0)[first:]
    compiled = np.flatnonzero(compile_ns)
    durations_ns = series.durations_ns[first:]
    share = float(compile_ns.sum() / durations_ns.sum()) if len(durations_ns) else 0.0
    if not row.holds(share):
        return []
    if len(compiled) <= _USUAL and share < _LARGE:
        return []
    if len(compiled) < _USUAL and not _is_varied(series.elements, compiled):
        return []
    steps = series.numbers[first:][compiled]
    fields = {"steps": f"{len(compiled):,}", "all": f"{len(durations_ns):,}", "value": share}
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(**fields),
            action=row.action,
            evidence={
                "share": share,
                "steps": float(len(compiled)),
                "compile_ns": float(compile_ns[compiled].mean()),
            },
            where=Where(section=names.SPAN_COMPILE, steps=(int(steps[0]), int(steps[-1]))),
            # Less is saved if one graph for all shapes is slower. More is saved because the garbage
            # of each graph and the search among many graphs cost time, too.
            gain=Gain(low=0.8 * share, high=min(1.0, 1.15 * share)),
            command=f"otel-mlperf summary {numbers.summary.short_id} --calls",
        )
    ]


def _is_varied(elements: NDArray[np.float64], compiled: NDArray[np.intp]) -> bool:
    """Return whether batch sizes vary; if a size is unknown, whether one compilation was early."""
    known = elements[~np.isnan(elements)]
    if len(known) < len(elements):
        return bool(compiled[0] < _SOON)
    _, counts = np.unique(known, return_counts=True)
    return bool(1 - counts.max() / len(known) > _VARIED)
