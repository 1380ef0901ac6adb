"""``otel-mlperf check``: regression gate of a run against bounds and a baseline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them

if TYPE_CHECKING:
    from otel_mlperf.analysis.comparison.bounds import Bound, Verdicts
    from otel_mlperf.analysis.comparison.comparison_shapes import RunMeasures

_Baseline = Annotated[
    str | None,
    typer.Option(metavar="RUN|FILE", help="A run, or a file of --write-baseline, to compare with."),
]
_Max = Annotated[
    list[str] | None,
    typer.Option(
        "--max", metavar="BOUND", help="A bound, e.g. train.step.p95=20ms or samples_per_s>=1000."
    ),
]
NOTHING_COMPARED_CODE = 3
"""Exit code if nothing was compared: the check does not pass, but nothing was found to be
slower."""
_Tolerance = Annotated[
    float,
    typer.Option(min=0.0, help="Allowed slowdown relative to the baseline (e.g. 0.05 for 5 %)."),
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
    """Exit with 1 if a run is slower than its baseline, or beyond a bound.

    The exit code is 3 if nothing could be compared: the run and its baseline have no step and no
    section in common. One line is printed for each breach, and one for the step. Only a significant
    slowdown is a breach; a message reports if there are too few steps to decide.
    """
    from functools import partial

    from otel_mlperf.analysis.comparison.bounds import parse_bound
    from otel_mlperf.analysis.comparison.run_measures import read_measures
    from otel_mlperf.cli.output import print_answer, say, to_json, warn
    from otel_mlperf.errors import UsageError
    from otel_mlperf.report.comparison_table import counted
    from otel_mlperf.report.verdicts import github_annotations, junit_xml, render_verdicts

    bounds = [parse_bound(told) for told in maximum or ()]
    if not bounds and baseline is None and write_baseline is None:
        raise UsageError("checking a run: give --baseline, --max, or --write-baseline")
    measures = read_measures(run)
    if write_baseline is not None:
        write_baseline.parent.mkdir(parents=True, exist_ok=True)
        _write(write_baseline, to_json(measures) + "\n")
        tell = warn if as_json else say
        tell(f"wrote {write_baseline}: {counted(measures)} of run {measures.short_id}")
    answer = _judge(measures, bounds, baseline, tolerance)
    verdicts, context = answer.verdicts, answer.context
    if junit is not None:
        report = junit_xml(verdicts, f"{measures.name} {measures.short_id}", context)
        _write(junit, report)
    if verdicts or as_json:
        print_answer(answer, partial(render_verdicts, verdicts, context), as_json=as_json)
    if github:
        # With --json they go to stderr: GitHub reads both streams, a program only stdout.
        print(
            github_annotations(verdicts, context),
            end="",
            file=sys.stderr if as_json else sys.stdout,
        )
    if any(verdict.level == "breach" for verdict in verdicts):
        raise typer.Exit(1)
    if answer.is_broken:
        raise typer.Exit(NOTHING_COMPARED_CODE)


def _write(path: Path, text: str) -> None:
    from otel_mlperf.whole_file import new_file

    with new_file(path, is_replaced=True) as file:
        file.write(text.encode())


def _judge(
    measures: RunMeasures, bounds: list[Bound], baseline: str | None, tolerance: float
) -> Verdicts:
    from otel_mlperf.analysis.comparison.bounds import Verdicts, judge_bound, judge_changes
    from otel_mlperf.analysis.comparison.comparison import compare_runs
    from otel_mlperf.analysis.comparison.run_measures import read_measures
    from otel_mlperf.report.verdicts import context_of, is_broken

    verdicts, context = [judge_bound(measures, bound) for bound in bounds], []
    if baseline is not None:
        comparison = compare_runs(read_measures(baseline), measures)
        verdicts += judge_changes(comparison, tolerance)
        context = context_of(comparison, baseline)
    return Verdicts(is_broken=is_broken(verdicts), verdicts=verdicts, context=context)
