"""``otel-mlperf summary``: where did the time of a run go?"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from otel_mlperf.cli.commands import JsonOption, RunArgument  # noqa: TC001 - typer reads them


def summary(
    run: RunArgument = "latest",
    as_json: JsonOption = False,
    closing: Annotated[bool, typer.Option("--closing", hidden=True)] = False,
    wait_stored: Annotated[list[str] | None, typer.Option("--wait-stored", hidden=True)] = None,
) -> None:
    """Show where the time of a run went: steps, sections, what is outside, the slowest step."""
    from otel_mlperf.analysis.summary import summarize
    from otel_mlperf.cli.waiting import wait_until_stored
    from otel_mlperf.report.console import render_summary
    from otel_mlperf.report.lines import shown_in
    from otel_mlperf.store.runs import find_run

    notes = wait_until_stored(wait_stored or [])
    found = summarize(find_run(run))
    # The closing text belongs to the program's messages, not to its output.
    stream = sys.stderr if closing else sys.stdout
    if as_json:
        from otel_mlperf.report.json import to_json

        print(to_json(found), file=stream)
        return
    color, unicode = shown_in(stream)
    print(render_summary(found, color=color, unicode=unicode, notes=notes), end="", file=stream)
