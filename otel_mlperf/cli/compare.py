"""``otel-mlperf compare``: differences between runs, by section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads it

if TYPE_CHECKING:
    from otel_mlperf.analysis.comparison.comparison_shapes import RunMeasures

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


def compare(runs: _Runs, windows: _Windows = None, as_json: JsonOption = False) -> None:
    """Show what is slower or faster in a run than in another one.

    For each section and for the step, it shows the difference with a confidence interval and a
    verdict: slower, faster, same, or unclear if the steps are too few. With more than two runs,
    each is compared with the first. For profiled runs it lists the kernels that changed, with the
    reason.
    """
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
        raise UsageError("comparing runs: name two of them, or more; otel-mlperf runs lists them")
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
        raise UsageError("--windows: they are of a single run; name one")
    run = find_run(runs[0])
    first, second = (measure_window(run, window) for window in windows)
    return first, second
