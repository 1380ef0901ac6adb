"""``otel-mlperf schema``: JSON Schema of the ``--json`` answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

_Command = Annotated[str | None, typer.Argument(help="Schema of this command only (default: all).")]


def schema(command: _Command = None) -> None:
    """Print the JSON Schema of what commands print with --json.

    Each answer names its shape in the field `schema`, such as `summary/1`. The number increases
    when a field is removed or changes its meaning; new fields may be added at any time.
    """
    from otel_mlperf.cli.output import to_json
    from otel_mlperf.errors import UsageError
    from otel_mlperf.report.answer_schema import answer_schema

    known = answers()
    if command is None:
        print(to_json(answer_schema("otel-mlperf --json", list(known.values()))))
        return
    if command not in known:
        raise UsageError(f"schema {command}: these have --json: {', '.join(known)}")
    print(to_json(answer_schema(f"otel-mlperf {command} --json", [known[command]])))


def answers() -> dict[str, Any]:
    """Return the answer types of each command that has ``--json``."""
    from otel_mlperf.analysis.comparison.bounds import Verdicts
    from otel_mlperf.analysis.comparison.comparison_shapes import Comparison, Comparisons
    from otel_mlperf.analysis.comparison.run_columns import RunColumns
    from otel_mlperf.analysis.live.live_view import Live
    from otel_mlperf.analysis.periods.period_shapes import Periods
    from otel_mlperf.analysis.profiles.hot_spots import HotRun
    from otel_mlperf.analysis.profiles.window_shapes import Kernels
    from otel_mlperf.analysis.steps.step_shapes import RequestTrace, RunTrace, StepFindings
    from otel_mlperf.analysis.summary.run_list import RunList
    from otel_mlperf.analysis.summary.summary_shapes import Summary
    from otel_mlperf.doctor.diagnosis import Diagnosis
    from otel_mlperf.findings.finding import FindingList
    from otel_mlperf.loader_trial.loader_settings import LoaderAnswer
    from otel_mlperf.report.import_notes import ImportedTraces
    from otel_mlperf.report.metric_pages import MetricList
    from otel_mlperf.store.run_query import QueryAnswer

    return {
        "summary": Summary,
        "periods": Periods,
        "findings": FindingList,
        "show": StepFindings | RunTrace | RequestTrace,
        "compare": Comparison | Comparisons,
        "check": Verdicts,
        "kernels": Kernels,
        "hot": HotRun,
        "query": QueryAnswer,
        "import": ImportedTraces,
        "runs": RunList | RunColumns,
        "top": Live,
        "loader": LoaderAnswer,
        "metrics": MetricList,
        "doctor": Diagnosis,
    }
