"""``otel-mlperf runs``: list of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads them
from otel_mlperf.cli.output import print_answer, warn

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder


_Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Comma-separated columns: step, forward.p95, samples_per_s, peak_memory, "
        "peak_gpu_memory, parameters, flops, mfu, a parameter or result of the run.",
    ),
]
_Sort = Annotated[
    str | None, typer.Option(metavar="NAME", help="Sort by this column, largest first.")
]
_Trend = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Runs with this name, oldest first, each with its change from the previous run.",
    ),
]


def runs(  # noqa: PLR0913, PLR0917 - one for each option
    as_json: JsonOption = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show all runs (default: the 20 newest).")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Only runs with this name (default: all).")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Only runs with this tag; may be repeated.")
    ] = None,
    columns: _Columns = None,
    sort: _Sort = None,
    ascending: Annotated[
        bool, typer.Option("--ascending", help="Sort in ascending order.")
    ] = False,
    trend: _Trend = None,
    mean: Annotated[
        bool, typer.Option("--mean", help="Add mean and standard deviation over the listed runs.")
    ] = False,
) -> None:
    """List the runs, newest first.

    --columns shows selected figures of each run, --trend how runs with the same name changed over
    time. Step counts are training steps or, without training, steps of the run's first phase.
    """
    from functools import partial

    from otel_mlperf.analysis.summary.run_list import RunList, overview
    from otel_mlperf.report.run_table import render_runs
    from otel_mlperf.store.run_folders import runs_dir, scan_runs

    folder = runs_dir()
    known, bad = scan_runs(folder)
    tags = set(tag or ())
    known = [
        run
        for run in known
        if (trend or name) in (None, run.facts.name) and tags <= set(run.facts.tags)
    ]
    chosen = known if every else known[:20]
    if columns is not None or sort is not None or trend is not None or mean:
        _print_columns(
            chosen, columns, sort, trend=trend, ascending=ascending, mean=mean, as_json=as_json
        )
        return
    shown = [overview(run) for run in chosen]
    draw = partial(render_runs, shown, str(folder), len(known) - len(shown), tuple(bad))
    print_answer(RunList(runs=shown), draw, as_json=as_json)
    for error in bad.values() if as_json else ():  # the text lists unreadable runs itself
        warn(str(error))


def _print_columns(
    chosen: list[RunFolder],
    columns: str | None,
    sort: str | None,
    *,
    trend: str | None,
    ascending: bool,
    mean: bool,
    as_json: bool,
) -> None:
    from functools import partial

    from otel_mlperf.analysis.comparison.run_columns import (
        USUAL,
        RunColumns,
        read_columns,
        read_means,
        read_trend,
        sort_rows,
    )
    from otel_mlperf.errors import UsageError
    from otel_mlperf.report.run_columns_table import render_columns

    if trend is not None and sort is not None:
        raise UsageError("--trend is sorted by time: omit --sort")
    wanted = [part.strip() for part in columns.split(",")] if columns else []
    wanted = list(dict.fromkeys([*wanted, *([sort] if sort else [])]))
    read = read_trend if trend is not None else read_columns
    rows = read(chosen, wanted, () if columns else USUAL)
    if sort is not None:
        rows = sort_rows(rows, sort, ascending=ascending)
    answer = RunColumns(runs=rows, means=(read_means(rows) or None) if mean else None)
    print_answer(answer, partial(render_columns, rows, answer.means), as_json=as_json)
