"""``otel-mlperf serve``: agent for the runs of a node, or server for an assistant."""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import OneRunArgument  # noqa: TC001 - typer reads it

_SERVERS = ("agent", "mcp")
_Server = Annotated[str, typer.Argument(metavar="|".join(_SERVERS), help="Server to start.")]


def serve(
    server: _Server,
    run: OneRunArgument = None,
    once: Annotated[
        bool, typer.Option("--once", help="With agent: exit when no journal is left.")
    ] = False,
) -> None:
    """Serve the runs of this node, or an AI assistant over MCP.

    `agent` reads and delivers every run of this user on this node, as a sidecar or service.
    Programs start their own agent by default: this one is for jobs with OTEL_MLPERF_AGENT=none.

    `mcp` serves an assistant by the Model Context Protocol, on standard input and output. The
    assistant can list, summarize and compare the runs in $OTEL_MLPERF_DIR, and query their tables;
    it cannot change anything. The assistant starts this command itself: see docs/assistants.md.
    """
    from otel_mlperf.errors import UsageError

    if server == "agent":
        from otel_mlperf.cli.agent import serve_runs

        serve_runs(run, once=once)
    elif server != "mcp" or run is not None or once:
        raise UsageError(f"serve {server}: expected agent [RUN] [--once], or mcp")
    else:
        from otel_mlperf.cli.mcp import serve_assistant

        serve_assistant()
