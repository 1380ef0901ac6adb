"""Model Context Protocol server that gives assistants access to runs."""

from __future__ import annotations

import sys


def serve_assistant() -> None:
    """Answer an assistant on standard input and output until the input ends."""
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
        warn("waiting for an assistant, which would start this itself; Ctrl-C leaves")
    serve()
