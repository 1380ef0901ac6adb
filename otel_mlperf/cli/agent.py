"""Commands ``agent`` and ``recover``: read journals by hand."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[str | None, typer.Argument(help="Only this run: name, id prefix or path.")]


def agent(
    run: RunArgument = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when no journal is left instead of waiting.")
    ] = False,
) -> None:
    """Serve every run of this user on this node, as a sidecar or service.

    Programs start their own agent; this one is for jobs with OTEL_MLPERF_AGENT=none, where one
    process of the node reads for all of them.
    """
    from otel_mlperf.agent.lifecycle.agent_process import serve
    from otel_mlperf.journal.folder_lock import is_served

    threads: dict[Path, threading.Thread] = {}
    while True:
        threads = {folder: t for folder, t in threads.items() if t.is_alive()}
        for folder in _folders(run):
            if folder not in threads and not is_served(folder):
                typer.echo(f"serving {folder.name}")
                thread = threading.Thread(target=serve, args=(folder, os.environ), daemon=True)
                threads[folder] = thread
                thread.start()
        if once and not threads:
            return
        time.sleep(1)


def recover(run: RunArgument = None) -> None:
    """Read journals that killed processes left; with RUN, only its, and deliver what waits.

    Without RUN the journals of all runs of this user on this node are read.
    """
    from otel_mlperf.agent.lifecycle.recovery import deliver_rest, recover_journals
    from otel_mlperf.errors import JournalError, Unreachable
    from otel_mlperf.otlp.endpoint_settings import read_settings
    from otel_mlperf.report.quantities import plural
    from otel_mlperf.store.run_folders import find_run

    found = recover_journals(os.environ, _folders(run))
    typer.echo(f"{plural(found.read, 'journal')} read to the end")
    if found.in_use:
        typer.echo(f"{plural(found.in_use, 'journal')} left alone: the program still runs; "
                   "'otel-mlperf agent' reads along")  # fmt: skip
    if found.failed:
        raise JournalError(
            "reading journals that were left behind: " + "; ".join(found.failed) + "; they stay "
            "where they are: the version of otel_mlperf that wrote them may read them"
        )
    if run is None:
        return
    rest = deliver_rest(find_run(run), os.environ)
    if rest.windows:
        typer.echo(f"{plural(rest.windows, 'profiler window')} converted")
    typer.echo(f"{plural(rest.delivered, 'request')} delivered, {rest.waiting:,} still waiting")
    if rest.waiting:
        server, _ = read_settings(os.environ, "traces")
        remedy = (
            f"not taken by {server.endpoint}; start that server, and try again"
            if server
            else "kept, for no server is named here; set OTEL_EXPORTER_OTLP_ENDPOINT, and try again"
        )
        what = plural(rest.waiting, "request")
        raise Unreachable(f"delivering what waits of run {run}: {what} {remedy}")


def _folders(run: str | None) -> list[Path]:
    """Journal folders on this node: of one run, or those in shared memory of all."""
    from otel_mlperf.journal.journal_folder import (
        folders_of_run,
        folders_with_journals,
        journals_in,
    )
    from otel_mlperf.store.run_folders import find_run

    if run is None:
        return folders_with_journals()
    found = find_run(run)
    places = map(Path, folders_of_run(found.facts.id, found.path, user=os.getuid()))
    return [place for place in places if journals_in(place)]
