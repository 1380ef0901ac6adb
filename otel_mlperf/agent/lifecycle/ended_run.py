"""Page of an ended run, for destinations that accept reports.

Only the agent with rank 0 creates it, because a run has a single page.
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
    """Return whether the page must be created: the run has ended and a destination accepts it."""
    is_accepted = bool(processor.accounts.takers("reports"))
    return is_accepted and state.page_due and not state.journals and 0 in state.seen_ranks()


def queue_page(
    run_folder: Path,
    folder: Path,
    state: AgentState,
    processor: EventProcessor,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Create the page from the tables and queue it; if that fails, it stays due.

    Args:
        run_folder: the run folder.
        folder: the agent's folder in it.
        state: the agent's state, in which ``page_due`` is reset on success.
        processor: queues the page for delivery.
        is_wanted: checked repeatedly; the page is abandoned once it returns False.
    """
    page = make_page(run_folder, folder, is_wanted)
    if page is not None:
        processor.emitter.keep_report(page)
        state.page_due = False
