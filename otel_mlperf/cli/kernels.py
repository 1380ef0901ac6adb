"""``otel-mlperf kernels``: what did the devices do while the profiler ran?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads it

if TYPE_CHECKING:
    from otel_mlperf.analysis.profiles.kernel_rows import By
    from otel_mlperf.analysis.profiles.window_shapes import Kernels
    from otel_mlperf.store.run_folders import RunFolder

    _Number = tuple[int, str | None]
    """Of a step, and its phase."""

_ENDINGS = (".json", ".gz")


def kernels(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|TRACE",
            help="Name, beginning of the id, or path of a run, or `latest`; or a trace file.",
        ),
    ] = "latest",
    by: Annotated[
        str | None,
        typer.Option(
            help="kernel, operator, annotation, stream, section, phase or step; kernel by default, "
            "operator where no device was at work."
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", metavar="N", help="Only the profiled step of this number."),
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option(help="With --step: train, validate, test or predict; train by default."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Only this rank of a run.")] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="So many rows; 15, and all in JSON, by default.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the devices did while the profiler ran.

    Of a run these are all of its profiler windows together, or one step of them on every rank that
    profiled it; a trace file is read as it is.
    """
    import sys

    from msgspec.structs import replace

    from otel_mlperf.errors import TraceError, UsageError
    from otel_mlperf.report.json_output import to_json
    from otel_mlperf.report.kernel_tables import TOP, render_kernels
    from otel_mlperf.report.lines import shown_in

    if phase is not None and step is None:
        raise UsageError(f"--phase {phase}: give it with --step, whose number several phases have")
    found = _find(source, _checked(by), rank, None if step is None else (step, phase))
    if as_json:
        print(to_json(replace(found, rows=found.rows[:top])))
    else:
        color, unicode = shown_in(sys.stdout)
        print(render_kernels(found, top=top or TOP, color=color, unicode=unicode), end="")
    damaged = [window for window in found.windows if window.damage]
    if damaged:
        sys.stdout.flush()
        raise TraceError(_damage(damaged[0].trace, damaged[0].damage))


def _checked(by: str | None) -> By | None:
    from otel_mlperf.analysis.profiles.kernel_rows import BY
    from otel_mlperf.errors import UsageError

    if by is None:
        return None
    for known in BY:
        if by == known:
            return known
    raise UsageError(f"--by {by}: it is one of {', '.join(BY)}")


def _find(source: str, by: By | None, rank: int | None, step: _Number | None) -> Kernels:
    from msgspec.structs import replace

    from otel_mlperf.analysis.profiles.recorded_windows import find_unread
    from otel_mlperf.errors import UsageError
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.store.table_reader import Store

    path = Path(source)
    if (path.exists() and not path.is_dir()) or source.endswith(_ENDINGS):
        if rank is not None:
            raise UsageError(f"--rank {rank}: the trace {source} is of one rank; leave it out")
        return _of_trace(path, by) if step is None else _of_trace_step(path, by, step)
    run = find_run(source)
    found = _of_run(run, by, rank, step)
    return replace(found, unread=len(find_unread(run, Store(run.path), rank)))


def _of_run(run: RunFolder, by: By | None, rank: int | None, step: _Number | None) -> Kernels:
    from otel_mlperf.analysis.profiles.kernel_totals import find_kernels, read_rows
    from otel_mlperf.analysis.profiles.profiled_step import find_step
    from otel_mlperf.analysis.profiles.profiled_steps import (
        choose_step,
        find_profiled,
        read_step_events,
    )
    from otel_mlperf.store.table_reader import Store

    name = f"{run.facts.name} · {run.short_id}"
    rows = read_rows(run, rank)
    if step is None:
        return find_kernels(rows, name, by, run.facts.world_size)
    of_rank = "" if rank is None else f" on rank {rank}"
    chosen = choose_step(find_profiled(rows["windows"]), *step, f"run {run.short_id}{of_rank}")
    events = read_step_events(Store(run.path, rank), chosen)
    return find_step(rows, chosen, events, name, by, run.facts.world_size)


def _of_trace(path: Path, by: By | None) -> Kernels:
    from otel_mlperf.analysis.profiles.kernel_totals import find_kernels
    from otel_mlperf.kineto.counting.window_numbers import count
    from otel_mlperf.kineto.counting.window_rows import rows_of
    from otel_mlperf.kineto.linking.link import link
    from otel_mlperf.kineto.reading.trace_reader import read_trace

    trace = read_trace(path)
    links = link(trace)
    rows = rows_of(trace, count(trace, links), links.orphans)
    return find_kernels(rows, path.name, by, trace.world_size)


def _of_trace_step(path: Path, by: By | None, step: _Number) -> Kernels:
    from otel_mlperf.analysis.profiles.profiled_step import find_step
    from otel_mlperf.analysis.profiles.profiled_steps import (
        below_annotation,
        choose_step,
        find_profiled,
    )
    from otel_mlperf.kineto.convert import convert, stored_rows
    from otel_mlperf.kineto.counting.window_rows import rows_of

    found = convert(path)
    rows = rows_of(found.trace, found.numbers, found.links.orphans)
    chosen = choose_step(find_profiled(rows["windows"]), *step, path.name)
    events = [row for row in stored_rows(found) if row["kind"] == "event"]
    inside = below_annotation(events, chosen[0].name)
    return find_step(rows, chosen, inside, path.name, by, found.trace.world_size)


def _damage(trace: str, damage: list[dict[str, Any]]) -> str:
    first = damage[0]
    return (
        f"reading {trace}: {str(first['kind']).replace('_', ' ')} at byte {first['offset']:,}; "
        "shown is what could be read"
    )
