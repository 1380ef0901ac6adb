"""``otel-mlperf metrics``: reference of all metrics."""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads it


def metrics(
    as_json: JsonOption = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page docs/metrics.md.")
    ] = False,
) -> None:
    """List every metric with its kind, unit, labels, name in Prometheus and meaning."""
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.report.metric_pages import list_metrics, render_markdown, render_metrics

    if as_markdown and not as_json:
        print(render_markdown(), end="")
    else:
        print_answer(list_metrics(), render_metrics, as_json=as_json)
