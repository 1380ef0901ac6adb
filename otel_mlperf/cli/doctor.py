"""``otel-mlperf doctor``: diagnosis of machine, run, agent and server, with remedies."""

from __future__ import annotations

import os

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.errors import Unreachable


def doctor(run: RunArgument = "latest", as_json: JsonOption = False) -> None:
    """Check machine, run, agent, accounting and server; failures first."""
    from functools import partial

    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.doctor.diagnosis import diagnose
    from otel_mlperf.report.finding_lines import render_checks

    diagnosis = diagnose(run, os.environ)
    print_answer(diagnosis, partial(render_checks, diagnosis.checks), as_json=as_json)
    if diagnosis.has_failed:
        raise typer.Exit(Unreachable.exit_code)
