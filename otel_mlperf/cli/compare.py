"""``otel-mlperf compare``: differences between runs, by section, and the regression check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads it

if TYPE_CHECKING:
    from otel_mlperf.analysis.comparison.comparison_shapes import RunMeasures
    from otel_mlperf.cli.run_check import CheckOptions

_Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="BEFORE AFTER…",
        help="Runs: name, id prefix, path or `latest`; or baseline files (.json).",
    ),
]
_Windows = Annotated[
    tuple[int, int] | None,
    typer.Option(
        metavar="N M",
        help="Compare the kernels of two profiler windows of one run, counted from 1.",
    ),
]
_Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Exit with 1 if AFTER is slower than BEFORE. Implied by --tolerance, --max, "
        "--write-baseline, --junit and --github.",
    ),
]
_Tolerance = Annotated[
    float,
    typer.Option(min=0.0, help="Allowed slowdown relative to BEFORE (e.g. 0.05 for 5 %)."),
]
_Max = Annotated[
    list[str] | None,
    typer.Option(
        "--max",
        metavar="BOUND",
        help="Bound on AFTER, e.g. train.step.p95=20ms or samples_per_s>=1000. May be repeated.",
    ),
]
_WriteBaseline = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write AFTER as a baseline file (.json).")
]
_Junit = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a test report for a CI server.")
]
_Github = Annotated[bool, typer.Option("--github", help="Print annotations for GitHub Actions.")]


def compare(  # noqa: PLR0913, PLR0917 - one for each option
    runs: _Runs,
    windows: _Windows = None,
    is_check: _Check = False,
    tolerance: _Tolerance = 0.0,
    maximum: _Max = None,
    write_baseline: _WriteBaseline = None,
    junit: _Junit = None,
    github: _Github = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is slower or faster than in another run.

    For the step and each section, it shows the difference with a confidence interval and a verdict:
    slower, faster, same, or unclear if there are too few steps. With more than two runs, each is
    compared with the first. For profiled runs it lists the kernels that changed, with the reason.

    --check makes it a regression check, which prints one line per breach and one for the step time.
    The exit code is 1 on a breach, and 3 if the runs have no step and no section in common. Only a
    significant slowdown is a breach. --max works without BEFORE.
    """
    from otel_mlperf.cli.run_check import CheckOptions

    options = CheckOptions(maximum or [], tolerance, write_baseline, junit, github)
    if is_check or any(options):
        _check(runs, windows, options, as_json=as_json)
    else:
        _show_differences(runs, windows, as_json=as_json)


def _check(
    runs: list[str], windows: tuple[int, int] | None, options: CheckOptions, *, as_json: bool
) -> None:
    from otel_mlperf.cli.run_check import check_run
    from otel_mlperf.errors import UsageError

    if len(runs) > 2 or windows is not None:
        raise UsageError("checking a run: expected RUN or BASELINE RUN, without --windows")
    baseline = runs[0] if len(runs) == 2 else None
    check_run(runs[-1], baseline, options, as_json=as_json)


def _show_differences(runs: list[str], windows: tuple[int, int] | None, *, as_json: bool) -> None:
    from functools import partial

    from otel_mlperf.analysis.comparison.comparison import compare_runs
    from otel_mlperf.analysis.comparison.comparison_shapes import Comparisons
    from otel_mlperf.analysis.comparison.run_measures import read_measures
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.errors import UsageError
    from otel_mlperf.report.comparison_table import render_comparison, render_comparisons

    if windows is not None:
        one = compare_runs(*_measure_windows(runs, windows))
        print_answer(one, partial(render_comparison, one), as_json=as_json)
        return
    if len(runs) < 2:
        raise UsageError(
            "comparing runs: expected at least two runs; list the runs with otel-mlperf runs"
        )
    first, *others = map(read_measures, runs)
    comparisons = [compare_runs(first, other) for other in others]
    if len(comparisons) == 1:
        (one,) = comparisons
        print_answer(one, partial(render_comparison, one), as_json=as_json)
        return
    answer = Comparisons(comparisons=comparisons)
    print_answer(answer, partial(render_comparisons, comparisons), as_json=as_json)


def _measure_windows(runs: list[str], windows: tuple[int, int]) -> tuple[RunMeasures, RunMeasures]:
    from otel_mlperf.analysis.comparison.run_measures import measure_window
    from otel_mlperf.errors import UsageError
    from otel_mlperf.store.run_folders import find_run

    if len(runs) > 1:
        raise UsageError("--windows: expected a single run")
    run = find_run(runs[0])
    first, second = (measure_window(run, window) for window in windows)
    return first, second
