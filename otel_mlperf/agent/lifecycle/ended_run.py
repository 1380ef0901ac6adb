"""The page of an ended run, for destinations that accept reports.

The agent that has rank 0 makes it, because a run has one page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.agent.run_page import make_page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_mlperf.agent.lifecycle.event_processor import EventProcessor
    from otel_mlperf.agent.model.agent_state import AgentState


def is_page_due(state: AgentState, processor: EventProcessor) -> bool:
    """Return whether a destination accepts the page of this run, and the run has changed since."""
    is_taken = bool(processor.accounts.takers("reports"))
    return is_taken and state.page_due and not state.journals and 0 in state.seen_ranks()


def queue_page(
    run_folder: Path,
    folder: Path,
    state: AgentState,
    processor: EventProcessor,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Make the page from the tables and put it into the outbox; otherwise it stays due.

    Args:
        run_folder: the run.
        folder: the agent's own.
        state: whether the page is due, also after the call.
        processor: whose outbox.
        is_wanted: checked repeatedly in the meantime.
    """
    page = make_page(run_folder, folder, is_wanted)
    if page is not None:
        processor.emitter.keep_report(page)
        state.page_due = False
