"""``otel-mlperf show``: what happened in one step?"""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them


def show(
    run: RunArgument = "latest",
    step: Annotated[
        int | None,
        typer.Option("--step", help="The number that the program gave it; the slowest by default."),
    ] = None,
    phase: Annotated[
        str | None, typer.Option(help="train, validate, test or predict; train by default.")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Only this rank.")] = None,
    operators: Annotated[
        bool,
        typer.Option(
            "--operators/--no-operators", help="What a profiler saw under each section, by name."
        ),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Show one step: its spans, else what was measured.

    Without --step it is the slowest of those whose spans were kept. A step that was profiled comes
    with its operators and kernels.
    """
    from functools import partial

    from otel_mlperf.analysis.steps.one_step import read_step
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.report.step_page import render_step
    from otel_mlperf.store.run_folders import find_run

    answer = read_step(find_run(run), step, phase, rank, operators=operators)
    print_answer(answer, partial(render_step, answer), as_json=as_json)
