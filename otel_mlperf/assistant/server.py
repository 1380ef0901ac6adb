"""How is an assistant answered? By the Model Context Protocol, over standard input and output."""

from __future__ import annotations

import importlib.metadata
import inspect
from functools import wraps
from typing import TYPE_CHECKING

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from otel_mlperf.assistant.tools import INSTRUCTIONS, TOOLS, query, tables
from otel_mlperf.errors import OtelMlperfError
from otel_mlperf.report.lines import visible

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Tool = Callable[..., Awaitable[str]]

_READS_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


def serve() -> None:
    """Answers until standard input ends."""
    version = importlib.metadata.version("otel-mlperf")
    server = MCPServer(
        "otel-mlperf", instructions=INSTRUCTIONS, version=version, log_level="WARNING"
    )
    for tool in TOOLS:
        server.add_tool(
            _told(tool),
            description=_description(tool),
            annotations=_READS_ONLY,
            structured_output=False,
        )
    server.run("stdio")


def _description(tool: Tool) -> str:
    described = inspect.cleandoc(tool.__doc__ or "")
    return f"{described}\n{tables()}" if tool is query else described


def _told(tool: Tool) -> Tool:
    """The same, whose errors are texts for the assistant."""

    @wraps(tool)
    async def told(*given: object, **named: object) -> str:
        try:
            return await tool(*given, **named)
        except OtelMlperfError as error:
            raise ToolError(visible(str(error))) from error

    return told
