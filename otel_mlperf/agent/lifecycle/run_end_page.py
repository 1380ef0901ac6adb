"""Page of an ended run, for destinations that accept reports.

Only the agent with rank 0 creates the page, because a run has a single page.
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
    """Return whether this agent must create the page: all ranks ended, and rank 0 ran here."""
    is_accepted = bool(processor.accounts.takers("reports"))
    return is_accepted and state.page_due and not state.journals and 0 in state.seen_ranks()


def queue_page(
    run_folder: Path,
    folder: Path,
    state: AgentState,
    processor: EventProcessor,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Create the page from the tables and queue it for delivery. The page stays due on failure.

    Args:
        run_folder: the run folder.
        folder: the agent's folder in the run folder.
        state: the agent's state, in which ``page_due`` is reset on success.
        processor: queues the page for delivery.
        is_wanted: checked repeatedly. If it returns False, the page is abandoned.
    """
    page = make_page(run_folder, folder, is_wanted)
    if page is not None:
        processor.emitter.keep_report(page)
        state.page_due = False
