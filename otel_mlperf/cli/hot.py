"""``otel-mlperf hot``: hot functions and lines of profiled sections."""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them


def hot(
    run: RunArgument = "latest",
    section: Annotated[str | None, typer.Option(help="Only the section with this name.")] = None,
    rank: Annotated[int | None, typer.Option(help="Only this rank.")] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of rows (default: 10; with --json: all)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the functions that took the time of profiled sections, and the lines that allocated.

    A program enables it by `span(name, profile="calls")`, "lines" or "memory"; profiler windows
    with stacks (`with_stack=True`) contain functions, too.
    """
    from functools import partial

    from otel_mlperf.analysis.profiles.hot_spots import find_hot
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.report.hot_table import TOP, render_hot
    from otel_mlperf.store.run_folders import find_run

    found = find_hot(find_run(run), section, rank)
    print_answer(found, partial(render_hot, found, top=top or TOP), as_json=as_json)
