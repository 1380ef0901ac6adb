"""``otel-mlperf report``: HTML page of a run in a single file."""

from __future__ import annotations

from typing import Annotated

import typer

_Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN…",
        help="Runs: name, id prefix, path, or `latest`. With several runs, the page describes "
        "the last one and compares each with the first one.",
    ),
]


def report(
    runs: _Runs = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Output file (default: in the current folder)."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a self-contained HTML report of a run.

    The page needs no server and no network. It contains a headline, findings, time breakdown,
    steps, memory and devices over time, calls of sections, ranks, kernels, and the environment.
    With a second run it also shows what is slower or faster.
    """
    from pathlib import Path

    from otel_mlperf.analysis.page.page_contents import read_page
    from otel_mlperf.cli.output import echo
    from otel_mlperf.quantities import size
    from otel_mlperf.report.page.page_file import render_page
    from otel_mlperf.store.run_folders import LATEST, find_run
    from otel_mlperf.whole_file import new_file

    found = [find_run(run) for run in runs or [LATEST]]
    path = Path(out or f"{found[-1].path.resolve().name}.html")
    with new_file(path, is_replaced=force) as file:
        file.write(render_page(read_page(found)).encode())
    echo(f"{path}: {size(path.stat().st_size)}\nopen the file in any browser")
