"""Regression check of a run against bounds and a baseline, with an exit code for CI."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.analysis.comparison.bounds import Bound, Verdicts
    from otel_mlperf.analysis.comparison.comparison_shapes import RunMeasures

NOTHING_COMPARED_CODE = 3
"""Exit code if nothing could be compared, so that the check has neither passed nor failed."""


class CheckOptions(NamedTuple):
    """Options of the regression check: bounds, tolerance, and the files to write."""

    bounds: list[str]
    """Bounds on the run's measures, such as ``train.step.p95=20ms``."""
    tolerance: float
    """Allowed slowdown relative to the baseline: 0.05 is five percent."""
    write_baseline: Path | None
    """Baseline file to which the run's measures are written; None: no such file."""
    junit: Path | None
    """JUnit test report to write for a CI server; None: no such file."""
    is_github: bool
    """Whether to print annotations for GitHub Actions."""


def check_run(run: str, baseline: str | None, options: CheckOptions, *, as_json: bool) -> None:
    """Check a run against bounds and ``baseline``, if any; print each breach and the step time.

    The process exits with 1 on a breach, and with 3 if nothing could be compared, because the run
    and the baseline have neither steps nor sections in common. Only a significant slowdown is a
    breach; if there are too few steps to decide, a message reports this.
    """
    from functools import partial

    from otel_mlperf.analysis.comparison.bounds import parse_bound
    from otel_mlperf.analysis.comparison.run_measures import read_measures
    from otel_mlperf.cli.output import echo, print_answer, to_json, warn
    from otel_mlperf.errors import UsageError
    from otel_mlperf.report.comparison_table import counted
    from otel_mlperf.report.verdicts import github_annotations, junit_xml, render_verdicts

    bounds = [parse_bound(text) for text in options.bounds]
    write_baseline = options.write_baseline
    if not bounds and baseline is None and write_baseline is None:
        raise UsageError(
            "checking a run: pass a baseline before the run, or pass --max or --write-baseline"
        )
    measures = read_measures(run)
    if write_baseline is not None:
        write_baseline.parent.mkdir(parents=True, exist_ok=True)
        _write(write_baseline, to_json(measures) + "\n")
        report = warn if as_json else echo
        report(f"wrote {write_baseline}: {counted(measures)} of run {measures.short_id}")
    answer = _judge(measures, bounds, baseline, options.tolerance)
    verdicts, context = answer.verdicts, answer.context
    if options.junit is not None:
        suite = f"{measures.name} {measures.short_id}"
        _write(options.junit, junit_xml(verdicts, suite, context))
    if verdicts or as_json:
        print_answer(answer, partial(render_verdicts, verdicts, context), as_json=as_json)
    if options.is_github:
        # With --json, print them on stderr: GitHub reads both streams, but stdout must be JSON.
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
