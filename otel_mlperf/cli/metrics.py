"""``otel-mlperf metrics``: which metrics are there, and what do they mean?"""

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
    import sys

    from otel_mlperf.report.json_output import to_json
    from otel_mlperf.report.lines import shown_in
    from otel_mlperf.report.metric_pages import metric_rows, render_markdown, render_metrics

    if as_json:
        print(to_json(metric_rows()))
    elif as_markdown:
        print(render_markdown(), end="")
    else:
        color, unicode = shown_in(sys.stdout)
        print(render_metrics(color=color, unicode=unicode), end="")
