"""``otel-mlperf periods``: figures of a run by hour or another period."""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them


def periods(
    run: RunArgument = "latest",
    every: Annotated[
        str, typer.Option(metavar="TIME", help="Length of a period: 15m, 1h, 1d.")
    ] = "1h",
    phase: Annotated[
        str | None,
        typer.Option(help="Steps of this phase: train, validate, test, predict; or request."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Only this rank.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the figures of a run by hour: steps, requests, their durations, CPUs and memory.

    Periods start at midnight of the local clock, and at multiples of their length from there. A
    step or request counts in the period in which it ended. It also works for a running run.
    """
    from functools import partial

    from msgspec.structs import replace

    from otel_mlperf.analysis.periods.period_grid import parse_length
    from otel_mlperf.analysis.periods.periods import read_periods
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.cli.stored_now import wait_for_now
    from otel_mlperf.report.period_tables import render_periods
    from otel_mlperf.store.run_folders import find_run

    every_ns, folder = parse_length(every), find_run(run)
    missing = wait_for_now(folder)
    answer = replace(read_periods(folder, every_ns, rank, phase), missing=missing)
    print_answer(answer, partial(render_periods, answer), as_json=as_json)
