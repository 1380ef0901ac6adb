"""``otel-mlperf reference``: reference of the metrics, and JSON Schema of the answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads it

_TOPICS = ("metrics", "schema")
_Topic = Annotated[str, typer.Argument(metavar="|".join(_TOPICS), help="Topic of the reference.")]
_Command = Annotated[
    str | None,
    typer.Argument(help="Command whose JSON Schema is printed (default: all; only with `schema`)."),
]


def reference(
    topic: _Topic,
    command: _Command = None,
    as_json: JsonOption = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference of the metrics as Markdown.")
    ] = False,
) -> None:
    """Print the reference of the metrics, or the JSON Schema of --json output.

    `metrics` lists every metric with its kind, unit, labels, name in Prometheus and meaning.

    `schema` prints the JSON Schema of what commands print with --json. The field `schema` of an
    answer contains its format and version, e.g. `summary/1`. The version increases when a field is
    removed or changes its meaning; new fields may be added at any time.
    """
    from otel_mlperf.errors import UsageError

    if topic == "schema":
        _print_schema(command)
    elif topic != "metrics" or command is not None:
        wanted = " ".join(filter(None, [topic, command]))
        raise UsageError(f"reference {wanted}: expected metrics, schema or schema COMMAND")
    else:
        _print_metrics(as_json=as_json, as_markdown=as_markdown)


def _print_metrics(*, as_json: bool, as_markdown: bool) -> None:
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.report.metric_pages import list_metrics, render_markdown, render_metrics

    if as_markdown and not as_json:
        print(render_markdown(), end="")
    else:
        print_answer(list_metrics(), render_metrics, as_json=as_json)


def _print_schema(command: str | None) -> None:
    from otel_mlperf.cli.output import to_json
    from otel_mlperf.errors import UsageError
    from otel_mlperf.report.answer_schema import answer_schema

    known = answers()
    if command is None:
        print(to_json(answer_schema("otel-mlperf --json", list(known.values()))))
        return
    if command not in known:
        raise UsageError(
            f"reference schema {command}: expected a command with --json: {', '.join(known)}"
        )
    print(to_json(answer_schema(f"otel-mlperf {command} --json", [known[command]])))


def answers() -> dict[str, Any]:
    """Return by command the type of its JSON answer; a union if a command has several answers."""
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
        "profile": LoaderAnswer,
        "summary": Summary | Periods | HotRun,
        "findings": FindingList,
        "show": StepFindings | RunTrace | RequestTrace,
        "kernels": Kernels,
        "top": Live,
        "runs": RunList | RunColumns,
        "query": QueryAnswer,
        "compare": Comparison | Comparisons | Verdicts,
        "import": ImportedTraces,
        "doctor": Diagnosis,
        "reference": MetricList,
    }
