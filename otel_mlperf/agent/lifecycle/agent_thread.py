"""How does the agent run where no process can be started?

In a thread of the program, on the journal's own mapping: opening the file a second time would drop
the lock that says the program lives. Of several ranks of a node one thread serves all, as one agent
would; the others wait until their journal has been read, or that one is gone.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.lifecycle.agent_process import remove_if_empty
from otel_mlperf.agent.model.agent_options import read_options
from otel_mlperf.journal.folder_lock import OnlyOne

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.journal.journal_writer import Journal
    from otel_mlperf.journal.meta import JournalMeta

_log = logging.getLogger("otel_mlperf.agent")


def run_in_thread(
    journal: Journal, meta: JournalMeta, environ: Mapping[str, str]
) -> threading.Thread:
    """Serves the folder of ``journal`` until that journal has been read; the thread is a daemon."""
    thread = threading.Thread(
        target=_run, args=(journal, meta, environ), name="otel_mlperf agent", daemon=True
    )
    thread.start()
    return thread


def _run(journal: Journal, meta: JournalMeta, environ: Mapping[str, str]) -> None:
    folder = Path(journal.path).parent
    try:
        while os.path.exists(journal.path):
            with OnlyOne(folder) as is_mine:
                if is_mine and os.path.exists(journal.path):
                    tail = Tail(folder, {journal.path: journal.buffer})
                    Agent(meta, tail, read_options(environ)).run()
        remove_if_empty(folder)
    except Exception:  # noqa: BLE001 - nobody above a thread
        _log.exception("the agent failed; what it had not read stays in the journal")
