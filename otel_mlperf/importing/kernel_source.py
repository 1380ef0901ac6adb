"""Kernels of a run's profiler windows, or of a trace file that is not imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_mlperf.analysis.profiles.kernel_rows import By
    from otel_mlperf.analysis.profiles.window_shapes import Kernels
    from otel_mlperf.store.run_folders import RunFolder

    _Number = tuple[int, str | None]
    """Step number and its phase."""

_ENDINGS = (".json", ".gz")


def find_source(
    source: str,
    by: By | None,
    rank: int | None,
    step: _Number | None,
    capture: Path | None = None,
) -> Kernels:
    """Return the kernels of the run that ``source`` names, or of the trace file at that path.

    Args:
        source: name of a run, or path of a trace.
        by: grouping of the rows; None: by kernel, or by operator if no device work is recorded.
        rank: rank of a run to count; None for all ranks. A trace has only one rank.
        step: step to count; None for all events.
        capture: trace of the capture of the CUDA graphs that the trace ``source`` replays, if any.

    Raises:
        NoSuchRun: ``source`` is neither a run nor a trace.
        UsageError: ``rank`` or ``capture`` does not apply, or ``step`` was not profiled.
        TraceError: no part of the trace can be read.
    """
    from msgspec.structs import replace

    from otel_mlperf.analysis.profiles.recorded_windows import find_unread
    from otel_mlperf.errors import UsageError
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.store.table_reader import Store

    path = Path(source)
    # A folder is a run. A missing file with a trace suffix is reported as a missing trace.
    if (path.exists() and not path.is_dir()) or source.endswith(_ENDINGS):
        if rank is not None:
            raise UsageError(
                f"--rank {rank}: the trace {source} contains only one rank; omit --rank"
            )
        if step is None:
            return _of_trace(path, by, capture)
        return _of_trace_step(path, by, step, capture)
    if capture is not None:
        raise UsageError(
            f"--capture {capture}: not possible for a run; pass --capture to otel-mlperf import, "
            "or with a trace"
        )
    run = find_run(source)
    totals = _of_run(run, by, rank, step)
    return replace(totals, unread=len(find_unread(run, Store(run.path), rank)))


def _of_run(run: RunFolder, by: By | None, rank: int | None, step: _Number | None) -> Kernels:
    from otel_mlperf.analysis.profiles.kernel_totals import find_step, read_kernels, read_rows
    from otel_mlperf.analysis.profiles.profiled_steps import (
        choose_step,
        find_profiled,
        read_step_events,
    )
    from otel_mlperf.kineto.counting.stored_step import count_step
    from otel_mlperf.store.table_reader import Store

    name = f"{run.facts.name} · {run.short_id}"
    if step is None:
        return read_kernels(run, name, by, rank)
    rows = read_rows(run, rank)
    of_rank = "" if rank is None else f" on rank {rank}"
    chosen = choose_step(find_profiled(rows.windows), *step, f"run {run.short_id}{of_rank}")
    events = read_step_events(Store(run.path, rank), chosen)
    counted = count_step(rows, events)
    return find_step(rows, counted, events, name, by, run.facts.world_size)


def _of_trace(path: Path, by: By | None, capture: Path | None) -> Kernels:
    from otel_mlperf.analysis.profiles.kernel_totals import find_kernels
    from otel_mlperf.kineto.counting.captured_graphs import read_captures
    from otel_mlperf.kineto.counting.replayed_graphs import match_replays
    from otel_mlperf.kineto.counting.window_numbers import count
    from otel_mlperf.kineto.counting.window_rows import rows_of
    from otel_mlperf.kineto.linking.link import link
    from otel_mlperf.kineto.reading.trace_reader import read_trace

    captured = read_captures(capture) if capture is not None else None
    trace = read_trace(path)
    links = link(trace)
    replayed = match_replays(trace, links, captured) if captured is not None else None
    rows = rows_of(trace, count(trace, links, replayed=replayed), links.orphans)
    return find_kernels(rows, path.name, by, trace.world_size)


def _of_trace_step(path: Path, by: By | None, step: _Number, capture: Path | None) -> Kernels:
    from otel_mlperf.analysis.profiles.kernel_totals import find_step
    from otel_mlperf.analysis.profiles.profiled_steps import (
        below_annotation,
        choose_step,
        find_profiled,
    )
    from otel_mlperf.kineto.convert import convert, stored_rows
    from otel_mlperf.kineto.counting.captured_graphs import read_captures
    from otel_mlperf.kineto.counting.stored_step import count_step
    from otel_mlperf.kineto.counting.window_rows import rows_of

    captured = read_captures(capture) if capture is not None else None
    converted = convert(path, captured=captured)
    rows = rows_of(converted.trace, converted.numbers, converted.links.orphans)
    chosen = choose_step(find_profiled(rows.windows), *step, path.name)
    events = [row for row in stored_rows(converted) if row["kind"] == "event"]
    inside = below_annotation(events, chosen)
    counted = count_step(rows, inside)
    return find_step(rows, counted, inside, path.name, by, converted.trace.world_size)
