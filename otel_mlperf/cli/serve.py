"""``otel-mlperf serve``: agent for the runs of a node, or server for an assistant."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from otel_mlperf.cli.arguments import OneRunArgument  # noqa: TC001 - typer reads it

if TYPE_CHECKING:
    from pathlib import Path

_SERVERS = ("agent", "mcp")
_Server = Annotated[str, typer.Argument(metavar="|".join(_SERVERS), help="Server to start.")]


def serve(
    server: _Server,
    run: OneRunArgument = None,
    once: Annotated[
        bool, typer.Option("--once", help="With agent: exit when all data is delivered.")
    ] = False,
) -> None:
    """Run the agent for the runs of this node, or an MCP server for AI assistants.

    `agent` collects and delivers the data of all runs of this user on this node, as a sidecar or
    service. Programs start their own agent by default: this command is needed only for jobs with
    OTEL_MLPERF_AGENT=none.

    `mcp` is a server of the Model Context Protocol on standard input and output. An assistant can
    list, summarize and compare the runs in $OTEL_MLPERF_DIR and query their tables, read-only. The
    assistant starts this command itself: see docs/assistants.md.
    """
    from otel_mlperf.errors import UsageError

    if server == "agent":
        _serve_runs(run, once=once)
    elif server != "mcp" or run is not None or once:
        raise UsageError(f"serve {server}: expected agent [RUN] [--once], or mcp")
    else:
        _serve_assistant()


def _serve_runs(run: str | None, *, once: bool) -> None:
    """Run an agent for ``run`` or, if it is None, for each run of this user on this node.

    If ``once`` is set, return when all served runs have ended; otherwise never return.
    """
    from otel_mlperf.agent.lifecycle.agent_process import serve
    from otel_mlperf.agent.lifecycle.run_recovery import folders_to_read
    from otel_mlperf.agent.model.agent_options import read_options
    from otel_mlperf.cli.output import echo
    from otel_mlperf.journal.folder_lock import is_served
    from otel_mlperf.store.run_folders import find_run

    options = replace(read_options(os.environ), prints=True)
    threads: dict[Path, threading.Thread] = {}
    while True:
        # Remove ended threads, since a run that becomes active again must be served again.
        threads = {folder: serving for folder, serving in threads.items() if serving.is_alive()}
        for folder in folders_to_read(None if run is None else find_run(run)):
            if folder not in threads and not is_served(folder):
                echo(f"serving {folder.name}")
                thread = threading.Thread(target=serve, args=(folder, options), daemon=True)
                threads[folder] = thread
                thread.start()
        if once and not threads:
            return
        time.sleep(1)


def _serve_assistant() -> None:
    from otel_mlperf.cli.output import warn
    from otel_mlperf.errors import MissingPackage

    try:
        from otel_mlperf.assistant import serve
    except ImportError as error:
        raise MissingPackage(
            f"answering an assistant: the package mcp is not installed, or too old ({error}); "
            "'pip install otel-mlperf[mcp]'"
        ) from error
    if sys.stdin.isatty():
        warn(
            "waiting for an assistant (assistants normally start this command themselves); Ctrl-C "
            "quits"
        )
    serve()
