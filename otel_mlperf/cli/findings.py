"""``otel-mlperf findings``: findings of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them


def findings(
    run: RunArgument = "latest",
    rank: Annotated[int | None, typer.Option(help="Only this rank (default: all).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is worth changing in a run, worst first.

    Each finding has its evidence, the possible saving and advice. If nothing was found, the
    output says so. It also lists the data that could not be evaluated.
    """
    from functools import partial

    from otel_mlperf.analysis.findings.finding_sources import judge_run
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.cli.stored_now import wait_for_now
    from otel_mlperf.findings.finding import FindingList
    from otel_mlperf.report.finding_lines import render_findings
    from otel_mlperf.store.run_folders import find_run

    folder = find_run(run)
    missing = wait_for_now(folder)
    summary = judge_run(folder, rank)
    answer = FindingList(
        id=summary.id, short_id=summary.short_id, findings=summary.findings, missing=missing
    )
    draw = partial(render_findings, answer, ranks=summary.ranks)
    print_answer(answer, draw, as_json=as_json)
