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
    import sys

    from otel_mlperf.analysis.steps.one_step import read_step
    from otel_mlperf.report.json_output import to_json
    from otel_mlperf.report.lines import shown_in
    from otel_mlperf.report.step_page import render_step
    from otel_mlperf.store.run_folders import find_run

    found = read_step(find_run(run), step, phase, rank, operators=operators)
    if as_json:
        print(to_json(found))
        return
    color, unicode = shown_in(sys.stdout)
    print(render_step(found, color=color, unicode=unicode), end="")
