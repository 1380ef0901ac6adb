"""Which trace does a root make, as the 16 bytes that go out?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf import ids

if TYPE_CHECKING:
    from otel_mlperf.agent.model.agent_state import JournalState
    from otel_mlperf.journal.meta import JournalMeta


def run_trace(meta: JournalMeta) -> bytes:
    """The trace of everything in the run that is outside its steps."""
    return ids.run_trace_id(meta.run_id, meta.restart).to_bytes(16, "big")


def step_trace(meta: JournalMeta, phase: str, n: int) -> bytes:
    """The trace of a step, the same on every rank."""
    return ids.trace_id(meta.run_id, meta.restart, phase, n).to_bytes(16, "big")


def trace_of(journal: JournalState, root: int) -> bytes:
    """The trace of a section by its root: a step's, the run's, somebody else's, or one of its own.

    Steps of a forked child are sections of the run.
    """
    known = journal.roots.get(root)
    if known is not None:
        return known.trace
    if root == journal.meta.run_span or root in journal.demoted:
        return run_trace(journal.meta)
    return ids.lone_trace_id(journal.meta.run_id, root).to_bytes(16, "big")
