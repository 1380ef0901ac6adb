"""``otel-mlperf check``: may this run pass?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them

_Baseline = Annotated[
    str | None,
    typer.Option(metavar="RUN|FILE", help="A run, or a file of --write-baseline, to compare with."),
]
_Max = Annotated[
    list[str] | None,
    typer.Option(
        "--max", metavar="BOUND", help="Such as train.step.p95=20ms or samples_per_s>=1000."
    ),
]
_Tolerance = Annotated[
    float,
    typer.Option(min=0.0, help="Share by which a time may be longer than the baseline's: 0.05."),
]
_Write = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write this run as a baseline file (.json).")
]


def check(
    run: RunArgument = "latest",
    baseline: _Baseline = None,
    maximum: _Max = None,
    tolerance: _Tolerance = 0.0,
    write_baseline: _Write = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a test report for a CI server.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotations for GitHub Actions.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """End with 1 where a run is slower than its baseline, or beyond a bound.

    One line for each breach, and one for the step. What is not surely slower passes; where there
    are too few steps to tell a line says so.
    """
    from functools import partial

    from otel_mlperf.analysis.comparison.bounds import judge_bound, judge_changes, parse_bound
    from otel_mlperf.analysis.comparison.comparison import compare_runs
    from otel_mlperf.analysis.comparison.run_measures import read_measures
    from otel_mlperf.cli.output import print_answer, say, to_json
    from otel_mlperf.errors import UsageError
    from otel_mlperf.report.verdicts import (
        context_of,
        github_annotations,
        is_broken,
        junit_xml,
        render_verdicts,
    )
    from otel_mlperf.whole_file import new_file

    bounds = [parse_bound(told) for told in maximum or ()]
    if not bounds and baseline is None and write_baseline is None:
        raise UsageError("checking a run: give --baseline, --max, or --write-baseline")
    measures = read_measures(run)
    if write_baseline is not None:
        write_baseline.parent.mkdir(parents=True, exist_ok=True)
        with new_file(write_baseline, is_replaced=True) as file:
            file.write((to_json(measures) + "\n").encode())
        say(f"wrote {write_baseline}: {measures.steps:,} steps of run {measures.short_id}")
    verdicts, context = [judge_bound(measures, bound) for bound in bounds], []
    if baseline is not None:
        comparison = compare_runs(read_measures(baseline), measures)
        verdicts += judge_changes(comparison, tolerance)
        context = context_of(comparison, baseline)
    if junit is not None:
        report = junit_xml(verdicts, f"{measures.name} {measures.short_id}", context)
        with new_file(junit, is_replaced=True) as file:
            file.write(report.encode())
    if verdicts:
        print_answer(verdicts, partial(render_verdicts, verdicts, context), as_json=as_json)
    if github:
        print(github_annotations(verdicts, context), end="")
    if is_broken(verdicts):
        raise typer.Exit(1)
