"""``otel-mlperf summary``: where did the time of a run go?"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.cli.output import to_json


def summary(
    run: RunArgument = "latest",
    rank: Annotated[int | None, typer.Option(help="Only this rank.")] = None,
    as_json: JsonOption = False,
    as_html: Annotated[
        bool, typer.Option("--html", help="Print a piece of HTML for notebooks.")
    ] = False,
    closing: Annotated[bool, typer.Option("--closing", hidden=True)] = False,
    wait_stored: Annotated[list[str] | None, typer.Option("--wait-stored", hidden=True)] = None,
) -> None:
    """Show where the time of a run went."""
    from otel_mlperf.analysis.findings.finding_sources import judge_run
    from otel_mlperf.analysis.run.run_processes import RUNNING
    from otel_mlperf.journal.stored_wait import find_left, find_losses, wait_until_stored
    from otel_mlperf.report.lines import shown_in
    from otel_mlperf.report.summary_table import render_summary
    from otel_mlperf.store.run_folders import find_run

    if wait_stored:
        importlib.import_module("duckdb")  # its loading and the agent's storing overlap
    notes = wait_until_stored(wait_stored or [])
    notes += find_losses(wait_stored or []) if notes else []
    folder = find_run(run)
    answer = judge_run(folder, rank)
    if answer.outcome == RUNNING and not closing:
        notes += find_left(folder.facts.id, folder.path, folder.short_id)
    # The closing text belongs to the program's messages, not to its output.
    stream = sys.stderr if closing else sys.stdout
    if as_json or as_html:
        from otel_mlperf.report.notebook import render_html

        print(to_json(answer) if as_json else render_html(answer), file=stream)
        return
    color, unicode = shown_in(stream)
    print(render_summary(answer, color=color, unicode=unicode, notes=notes), end="", file=stream)
