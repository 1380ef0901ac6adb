"""Components shared by the running agent and the recovery of runs."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.agent.delivery.destination import Destination, DestinationContext
from otel_mlperf.agent.delivery.destination_list import Withheld, make_destinations
from otel_mlperf.agent.delivery.outbox import Outbox
from otel_mlperf.agent.delivery.sender import Sender
from otel_mlperf.agent.intake.write_ahead_log import Log
from otel_mlperf.agent.lifecycle.event_processor import EventProcessor
from otel_mlperf.agent.model.agent_state import AgentState, load_state
from otel_mlperf.agent.model.table_rows import TableRows
from otel_mlperf.agent.window_conversion import WindowQueue
from otel_mlperf.errors import StoreError
from otel_mlperf.store.parts import last_number
from otel_mlperf.tables import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.agent.model.agent_options import Options

_log = logging.getLogger("otel_mlperf.agent")


class NodeParts(NamedTuple):
    """Components that convert events of a node to rows and requests, based on one state.

    Their threads are not started yet.
    """

    rows: TableRows
    outbox: Outbox
    destinations: list[Destination]
    windows: WindowQueue
    processor: EventProcessor
    sender: Sender


def load_or_begin(run_folder: Path, folder: Path) -> AgentState:
    """Load the last state of the agent in ``folder``, or create a new state.

    If the state is damaged, the new state ignores the existing event log.
    """
    path = folder / "state"
    try:
        return load_state(path)
    except StoreError as error:
        _log.warning("%s; the file is renamed to %s.bad", error, path)
        path.replace(path.with_suffix(".bad"))
        # Continue after all numbers that the lost state may have used, because a part or request
        # with a used number would be treated as a repetition.
        used = [last_number(run_folder, table, folder.name) for table in TABLES]
        segment = Log(folder, 0).after_all()
        return AgentState(segment=segment, part=max(used) + 1, request=time.time_ns())


def make_node_parts(
    run_folder: Path, folder: Path, options: Options, state: AgentState
) -> NodeParts:
    """Create the components of the agent in ``folder``; the folder's name identifies the host."""
    outbox = Outbox(folder / "requests", options.max_outbox_bytes)
    outbox.load(state.request, state.pending)
    rows = TableRows()
    site = DestinationContext(run_folder, folder.name, options, rows, state.seen_ranks)
    destinations = make_destinations(site)
    windows = WindowQueue(run_folder, folder, options)
    processor = EventProcessor(state, rows, options, outbox, destinations, windows.results)
    sender = Sender(outbox, [each for each in destinations if not isinstance(each, Withheld)])
    return NodeParts(rows, outbox, destinations, windows, processor, sender)
