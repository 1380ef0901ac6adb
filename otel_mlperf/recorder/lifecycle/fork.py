"""What does a forked child record?

Nothing until its first section; then it has a journal of its own, with ids of its own. Sections
that were open at the fork belong to the parent process: in the child they are inert.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.api import span as spans
from otel_mlperf.recorder.core.faults import count_with, internal_error

if TYPE_CHECKING:
    from otel_mlperf.recorder.core.recorder import Recorder

_hooked = False


def watch_forks() -> None:
    """From now on children of this process get what they need, without a thread or a file."""
    global _hooked
    if not _hooked:
        _hooked = True
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    try:
        recorder = spans._active  # not active(): a child that records nothing makes no journal
        if recorder is None or recorder.is_retired:
            return
        recorder.retire()
        recorder.replacement = lambda: _begin_in_child(recorder)
        spans.section_names({})
        count_with(None)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)


def _begin_in_child(parent: Recorder) -> Recorder | None:
    """The child's own recorder, made when it first records something."""
    import msgspec

    from otel_mlperf.recorder.lifecycle.begin import make_recorder

    parent.replacement = lambda: None
    spans.activate(None)
    try:
        meta = msgspec.structs.replace(
            parent.meta,
            pid=os.getpid(),
            is_child=True,
            monotonic_ns=time.monotonic_ns(),
            unix_ns=time.time_ns(),
        )
        recorder = make_recorder(meta, parent.config)
        recorder.registry.set_phase(parent.registry.phase)
    except Exception as error:  # noqa: BLE001 - no room for a journal: the child goes on without
        internal_error(error)
        return None
    count_with(lambda: recorder.journal.count(Word.INTERNAL_ERRORS))
    spans.activate(recorder)
    return recorder
