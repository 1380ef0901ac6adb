"""Measures of a run for a comparison: steps, sections of steps, calls outside steps, machine.

The warm-up step, failed steps and steps that a profiler slowed down are excluded. A step that
several ranks ran counts once, with the mean over the ranks, because ranks step together.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.comparison.comparison_shapes import (
    FORMAT,
    RunMeasures,
    TimeMeasures,
)
from otel_mlperf.analysis.comparison.kernel_measures import read_kernels
from otel_mlperf.analysis.steps.mean_estimates import (
    FEWEST_BLOCKS,
    TRIMMED,
    Estimate,
    estimate_mean,
)
from otel_mlperf.analysis.steps.step_series import read_section_series, read_step_series
from otel_mlperf.analysis.steps.step_shares import UNTRACKED, shown
from otel_mlperf.analysis.summary.call_totals import read_calls_by_name
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.errors import NoSuchWindow, StoreError
from otel_mlperf.store.run_folders import find_run
from otel_mlperf.store.table_reader import Store
from otel_mlperf.whole_file import read_regular

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from otel_mlperf.analysis.summary.call_shapes import CallFigures
    from otel_mlperf.analysis.summary.summary_shapes import Summary
    from otel_mlperf.store.run_folders import RunFolder


_LEFT_OUT: Final = (names.RUN, names.GARBAGE_COLLECTION, names.PROFILER)
_PIECES: Final = """SELECT name, count, sum_ns FROM durations
WHERE NOT in_step AND NOT list_contains($left_out, category)"""


def read_call_measures(store: Store) -> list[TimeMeasures]:
    """Return the measures of each section outside steps, most total time first.

    Sections of the same name in different places are merged.
    """
    pieces: dict[str, list[tuple[int, int]]] = {}
    for name, count, total in store.rows(_PIECES, left_out=_LEFT_OUT):
        pieces.setdefault(name, []).append((int(count), int(total)))
    return [
        _measures(figures, pieces[name])
        for name, figures in read_calls_by_name(store, _LEFT_OUT).items()
    ]


def _measures(calls: CallFigures, pieces: list[tuple[int, int]]) -> TimeMeasures:
    mean = _estimate(calls, pieces)
    return TimeMeasures(
        name=calls.name,
        category=calls.category,
        steps=calls.count,
        usual_ns=mean,
        mean_ns=mean,
        p50_ns=calls.p50_ns,
        p95_ns=calls.p95_ns,
        max_ns=float(calls.max_ns),
    )


def _estimate(calls: CallFigures, pieces: list[tuple[int, int]]) -> Estimate:
    count, mean = calls.count, calls.mean_ns
    if count < 2:
        return Estimate(mean, None, 1.0)
    error, blocks = calls.deviation_ns / math.sqrt(count - 1), float(count)
    if len(pieces) >= FEWEST_BLOCKS:
        squares = sum((total - mean * of) ** 2 for of, total in pieces)
        of_pieces = math.sqrt(squares * len(pieces) / (len(pieces) - 1)) / count
        if of_pieces > error:
            error, blocks = of_pieces, float(len(pieces))
    return Estimate(mean, error, blocks)


STEP: Final = "step"
"""Name of the measure of the whole step."""
_MIN_STEPS: Final = 2
_MAX_BYTES: Final = 64 << 20


def read_measures(run: str) -> RunMeasures:
    """Return the measures of ``run``: the name or id of a run, or a baseline file (``.json``).

    Raises:
        NoSuchRun: no run has that name.
        StoreError: the run or file cannot be read, or was written by a newer version.
    """
    if run.endswith(".json"):
        return read_baseline(run)
    return measure_run(find_run(run))


def read_baseline(file: str | Path) -> RunMeasures:
    """Read a baseline file.

    Raises:
        StoreError: the file cannot be read, is not a baseline, or was written by a newer version.
    """
    try:
        # Links are resolved; pipes and devices are rejected, because reading might never end.
        text = read_regular(os.path.realpath(file), _MAX_BYTES)
        # Only this field is guaranteed to exist in a newer version.
        found = msgspec.json.decode(text).get("format", 0)
        if found > FORMAT:
            raise StoreError(
                f"reading {file}: the file has format {found}, this version of otel-mlperf "
                f"supports {FORMAT}; upgrade otel-mlperf"
            )
        return msgspec.json.decode(text, type=RunMeasures)
    except (OSError, ValueError, AttributeError, msgspec.DecodeError) as error:
        raise StoreError(
            f"reading {file}: {error}; write the baseline file with "
            f"otel-mlperf compare RUN --write-baseline {file}"
        ) from error


def measure_run(run: RunFolder) -> RunMeasures:
    """Return all measures of a run, including its kernels.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    store = Store(run.path)
    summary = summarize(run, store=store)
    times, left_out = _read_times(store, summary)
    kernels = read_kernels(store)
    return RunMeasures(
        id=summary.id,
        short_id=summary.short_id,
        name=summary.name,
        outcome=summary.outcome,
        phase=summary.steps.phase if summary.steps else "",
        steps=times[0].steps if times else 0,
        left_out=left_out,
        times=times,
        calls=read_call_measures(store),
        numbers=_numbers(summary),
        params=summary.params,
        result=summary.result,
        last=summary.last,
        machine=_machine(summary),
        kernels=kernels.kernels,
        profiled_steps=kernels.steps,
    )


def measure_window(run: RunFolder, window: int) -> RunMeasures:
    """Return the kernels of one profiler window of a run; the other measures are empty.

    Args:
        run: the run.
        window: number of the window on each rank, from 1, in time order.

    Raises:
        NoSuchWindow: the run has fewer windows.
        StoreError: a file of the run cannot be read.
    """
    store = Store(run.path)
    kernels = read_kernels(store, window)
    if not kernels.windows:
        ((known,),) = store.rows("SELECT count(*) FROM windows WHERE rank = 0")
        raise NoSuchWindow(
            f"looking for profiler window {window} of run {run.short_id}: the run has {known} "
            f"profiler windows; list them with otel-mlperf kernels {run.short_id}"
        )
    return RunMeasures(
        id=run.facts.id,
        short_id=f"{run.short_id} window {window}",
        name=run.facts.name,
        outcome="",
        phase="",
        steps=0,
        left_out={},
        times=[],
        numbers={},
        params={},
        result={},
        last={},
        machine={},
        kernels=kernels.kernels,
        profiled_steps=kernels.steps,
    )


def _read_times(store: Store, summary: Summary) -> tuple[list[TimeMeasures], dict[str, int]]:
    steps = summary.steps
    if steps is None:
        return [], {}
    has_warm_up = summary.warm_up is not None
    series = read_step_series(store, steps.phase, has_warm_up=has_warm_up)
    left_out = {"warm-up": int(has_warm_up), "profiled": summary.profiled_steps}
    left_out["failed"] = steps.count - len(series.numbers) - sum(left_out.values())
    excluded = {reason: count for reason, count in left_out.items() if count > 0}
    if len(series.numbers) < _MIN_STEPS:
        return [], excluded
    times = [measure_times(STEP, "", series.durations_ns)]
    times += [
        measure_times(shown(section.name), section.category, section.own_ns)
        for section in read_section_series(store, steps.phase, has_warm_up=has_warm_up)
    ]
    return [*times, measure_times(UNTRACKED, "", series.own_ns)], excluded


def measure_times(name: str, category: str, times: NDArray[np.float64]) -> TimeMeasures:
    """Return the measures of a section from ``times``, its time in ns in each step, in step order.

    ``times`` must contain 0 for each step without the section.
    """
    nonzero = times[times > 0] if times.any() else times
    p50, p95 = _quantile(nonzero, 0.5), _quantile(nonzero, 0.95)
    return TimeMeasures(
        name=name,
        category=category,
        steps=int((times > 0).sum()),
        usual_ns=estimate_mean(nonzero, TRIMMED),
        mean_ns=estimate_mean(times),
        p50_ns=p50,
        p95_ns=p95,
        max_ns=float(nonzero.max()),
    )


def _quantile(times: NDArray[np.float64], share: float) -> float:
    return float(np.quantile(times, share, method="inverted_cdf"))


def _numbers(summary: Summary) -> dict[str, float]:
    steps, process, machine = summary.steps, summary.process, summary.machine
    known: dict[str, float | None] = {
        "duration_ns": summary.duration_ns,
        "samples_per_s": steps.samples_per_s if steps else None,
        "tokens_per_s": steps.tokens_per_s if steps else None,
        "memory_peak_bytes": process.memory_peak_bytes if process else None,
        "cuda_peak_bytes": process.cuda_peak_bytes if process else None,
        "cpus": process.cpus if process else None,
    }
    if machine is not None and machine.gpus:
        memory = [gpu.memory_bytes for gpu in machine.gpus if gpu.memory_bytes is not None]
        known["gpu_memory_bytes"] = max(memory, default=None)
    known |= _work_numbers(summary)
    return {name: value for name, value in known.items() if value is not None}


def _work_numbers(summary: Summary) -> dict[str, float | None]:
    work = summary.work
    if work is None:
        return {}
    return {
        "parameters": float(work.parameters),
        "flops_per_step": work.flops_per_step,
        "flops_per_s": work.flops_per_s,
        "mfu": work.mfu,
    }


def _machine(summary: Summary) -> dict[str, Any]:
    machine = summary.machine
    known: dict[str, Any] = {"ranks": summary.ranks, "nodes": summary.nodes}
    if machine is not None:
        known["cpus"] = machine.cpus
        known["gpus"] = sorted(gpu.name for gpu in machine.gpus)
    return known
