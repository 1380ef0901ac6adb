"""``otel-mlperf kernels``: device work in profiler windows or in a trace file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads it

if TYPE_CHECKING:
    from otel_mlperf.analysis.profiles.kernel_rows import By


_Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|TRACE",
        help="A run (name, id prefix, path, or `latest`) or a trace file.",
    ),
]
_By = Annotated[
    str | None,
    typer.Option(
        help="Group by kernel, operator, annotation, stream, section, phase or step "
        "(default: kernel, or operator if no GPU was used)."
    ),
]
_Step = Annotated[
    int | None,
    typer.Option("--step", metavar="N", help="Only the profiled step with this number."),
]
_Phase = Annotated[
    str | None,
    typer.Option(help="Phase of --step: train, validate, test or predict (default: train)."),
]
_Top = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of rows (default: 15; with --json: all).")
]
_Capture = Annotated[
    Path | None,
    typer.Option(
        metavar="TRACE",
        help="Trace recorded during graph capture: names the operators of kernels in replayed "
        "CUDA or HIP graphs.",
    ),
]


def kernels(
    source: _Source = "latest",
    by: _By = None,
    step: _Step = None,
    phase: _Phase = None,
    rank: Annotated[
        int | None, typer.Option(help="Only this rank of a run (default: all).")
    ] = None,
    top: _Top = None,
    capture: _Capture = None,
    as_json: JsonOption = False,
) -> None:
    """Show the GPU work, or the operators, that the profiler recorded.

    The table covers all profiler windows of a run, or one profiled step with --step. A trace file
    can be read directly, without an import.
    """
    import sys
    from functools import partial

    from otel_mlperf.analysis.profiles.kernel_rows import choose_rows
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.errors import TraceError, UsageError
    from otel_mlperf.importing.kernel_source import find_source
    from otel_mlperf.report.kernel_tables import TOP, render_kernels

    if phase is not None and step is None:
        raise UsageError(f"--phase {phase} requires --step")
    number = None if step is None else (step, phase)
    totals = find_source(source, _checked(by), rank, number, capture)
    draw = partial(render_kernels, totals, top=top or TOP)
    print_answer(choose_rows(totals, top), draw, as_json=as_json)
    damaged = [window for window in totals.windows if window.damage]
    if damaged:
        # Flush first, so that the result precedes the error even if both are written to one file.
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
    raise UsageError(f"--by {by}: expected one of {', '.join(BY)}")


def _damage(trace: str, damage: list[dict[str, Any]]) -> str:
    first = damage[0]
    return (
        f"reading {trace}: {str(first['kind']).replace('_', ' ')} at byte {first['offset']:,}; "
        "the output contains only the readable part"
    )
