"""``otel-mlperf doctor``: diagnosis, and recovery of data that killed processes left."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads it
from otel_mlperf.errors import Unreachable, UsageError

_Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="Run: name, id prefix or path (default: latest; with --recover: all).",
    ),
]


def doctor(
    run: _Run = None,
    is_recovery: Annotated[
        bool,
        typer.Option(
            "--recover", help="Instead, recover and deliver the data that killed processes left."
        ),
    ] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="With --recover: OTLP endpoint to send to, e.g. http://localhost:4318 (default: "
            "OTEL_EXPORTER_OTLP_ENDPOINT).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Diagnose a run and its servers, or recover data after a crash.

    It checks the machine, the run, its agent, the number of lost records and the server, and shows
    failures first.

    --recover reads the journals of killed processes and delivers the buffered data of RUN (default:
    all runs of this user on this node). An endpoint recorded
    only in the run folder is ignored: pass it with --endpoint.
    """
    if is_recovery:
        from otel_mlperf.cli.recovery import recover

        if as_json:
            raise UsageError("--recover does not support --json: omit --json")
        recover(run, endpoint)
        return
    if endpoint is not None:
        raise UsageError("--endpoint requires --recover")
    _diagnose(run or "latest", as_json=as_json)


def _diagnose(run: str, *, as_json: bool) -> None:
    from functools import partial

    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.doctor.diagnosis import diagnose
    from otel_mlperf.report.finding_lines import render_checks

    diagnosis = diagnose(run, os.environ)
    print_answer(diagnosis, partial(render_checks, diagnosis.checks), as_json=as_json)
    if diagnosis.has_failed:
        raise typer.Exit(Unreachable.exit_code)
