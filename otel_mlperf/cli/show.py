"""``otel-mlperf show``: one step, or one request, with its spans."""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them


def show(
    run: RunArgument = "latest",
    step: Annotated[
        int | None,
        typer.Option(
            "--step", help="Step number as reported by the program (default: the slowest step)."
        ),
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option(
            help="Phase: train, validate, test or predict (default: train); "
            "request: the slowest request."
        ),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            "--request",
            metavar="ID|N",
            help="Request: its id, or its number (from 1) among the requests with spans.",
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Only this rank (default: all).")] = None,
    operators: Annotated[
        bool,
        typer.Option(
            "--operators/--no-operators",
            help="Show the profiled operators under each section.",
        ),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Show one step: its spans, or its section times if no span was sampled.

    The default is the slowest step with sampled spans. A profiled step includes its operators and
    kernels. For a run without steps, the sections of the run are shown. --request shows one
    request, --phase request the slowest request.
    """
    from functools import partial

    from otel_mlperf.analysis.steps.one_request import read_request
    from otel_mlperf.analysis.steps.run_trace import find_run_trace
    from otel_mlperf.analysis.steps.sampled_step import read_step
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.errors import UsageError
    from otel_mlperf.names.attributes import REQUEST
    from otel_mlperf.report.step_page import render_request, render_run_trace, render_step
    from otel_mlperf.store.run_folders import find_run

    folder = find_run(run)
    if request is not None or phase == REQUEST:
        if step is not None:
            raise UsageError("--step: requests have no steps; choose a request with --request")
        found = read_request(folder, request, rank, operators=operators)
        print_answer(found, partial(render_request, found), as_json=as_json)
        return
    if step is None and phase is None:
        trace = find_run_trace(folder, rank, operators=operators)
        if trace is not None:
            print_answer(trace, partial(render_run_trace, trace), as_json=as_json)
            return
    answer = read_step(folder, step, phase, rank, operators=operators)
    print_answer(answer, partial(render_step, answer), as_json=as_json)
