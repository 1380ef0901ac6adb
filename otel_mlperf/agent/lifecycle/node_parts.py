"""What do the running agent and the recovery of what one left both put together?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.agent.delivery.destination import Destination, Site
from otel_mlperf.agent.delivery.destination_list import make_destinations
from otel_mlperf.agent.delivery.outbox import Outbox
from otel_mlperf.agent.delivery.sender import Sender
from otel_mlperf.agent.lifecycle.event_processor import EventProcessor
from otel_mlperf.agent.model.table_rows import TableRows
from otel_mlperf.agent.window_conversion import WindowQueue

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.model.agent_state import AgentState


class NodeParts(NamedTuple):
    """Whatever turns events of a node into rows and requests, over one state; nothing runs yet."""

    rows: TableRows
    outbox: Outbox
    destinations: list[Destination]
    windows: WindowQueue
    processor: EventProcessor
    sender: Sender


def make_node_parts(
    run_folder: Path, folder: Path, options: Options, state: AgentState
) -> NodeParts:
    """Those of the node whose agent has ``folder``, named after its host, in ``run_folder``."""
    outbox = Outbox(folder / "requests", options.outbox_bytes)
    outbox.load(state.request, state.pending)
    rows = TableRows()
    destinations = make_destinations(Site(run_folder, folder.name, options, rows))
    windows = WindowQueue(run_folder, folder, options)
    processor = EventProcessor(state, rows, options, outbox, destinations, windows.results)
    return NodeParts(rows, outbox, destinations, windows, processor, Sender(outbox, destinations))
