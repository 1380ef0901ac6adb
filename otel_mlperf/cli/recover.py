"""``otel-mlperf recover``: what is to be done with what killed processes left behind?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from otel_mlperf.cli.arguments import OneRunArgument  # noqa: TC001 - typer reads it
from otel_mlperf.config import DESTINATIONS, ENDPOINT
from otel_mlperf.errors import JournalError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping


def recover(run: OneRunArgument = None) -> None:
    """Read journals that killed processes left; with RUN, only its, and deliver what waits.

    Without RUN the journals of all runs of this user on this node are read. The settings are those
    that each run had, its server too; headers are this shell's, where it names that server too.
    """
    from otel_mlperf.agent.lifecycle.run_recovery import (
        deliver_rest,
        folders_to_read,
        recover_journals,
    )
    from otel_mlperf.report.quantities import plural
    from otel_mlperf.run_settings import as_recorded
    from otel_mlperf.store.run_folders import find_run

    meant = None if run is None else find_run(run)
    journals = recover_journals(os.environ, folders_to_read(meant))
    typer.echo(f"{plural(journals.read, 'journal')} read to the end")
    if journals.in_use:
        typer.echo(f"{plural(journals.in_use, 'journal')} left alone: the program still runs; "
                   "'otel-mlperf agent' reads along")  # fmt: skip
    if journals.failed:
        raise JournalError(
            "reading journals that were left behind: " + "; ".join(journals.failed) + "; they stay "
            "where they are: the version of otel_mlperf that wrote them may read them"
        )
    if meant is None:
        return
    rest = deliver_rest(meant, os.environ)
    if rest.windows:
        typer.echo(f"{plural(rest.windows, 'profiler window')} converted")
    typer.echo(f"{plural(rest.delivered, 'request')} delivered, {rest.waiting:,} still waiting")
    if rest.waiting:
        remedy = _remedy(as_recorded(meant.path, os.environ), meant.short_id)
        what = plural(rest.waiting, "request")
        raise Unreachable(f"delivering what waits of run {run}: {what} {remedy}")


def _remedy(settings: Mapping[str, str], run: str) -> str:
    from otel_mlperf.otlp.endpoint_settings import read_settings

    server, _ = read_settings(settings, "traces")
    if server:
        return (
            f"not taken by {server.endpoint}; start that server (headers go to it where {ENDPOINT} "
            f"names it too), or send its spans to another: otel-mlperf send {run} --endpoint URL"
        )
    if trackers := settings.get(DESTINATIONS):
        return f"not taken by {trackers} yet; try again once it answers"
    return f"kept, for no server is named here; set {ENDPOINT}, and try again"
