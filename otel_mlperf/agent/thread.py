"""How does the agent run where no process can be started?

In a thread of the program, on the journal's own mapping: opening the file a second time would drop
the lock that says the program lives.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from otel_mlperf.agent.loop import Agent
from otel_mlperf.agent.options import read_options
from otel_mlperf.agent.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.journal.writer import Journal

_log = logging.getLogger("otel_mlperf.agent")


def run_in_thread(
    journal: Journal, meta: JournalMeta, environ: Mapping[str, str]
) -> threading.Thread:
    """Serves the folder of ``journal`` until that journal is closed; the thread is a daemon.

    Raises:
        OSError: the run folder cannot be written.
    """
    folder = Path(journal.path).parent
    agent = Agent(meta, Tail(folder, {journal.path: journal.buffer}), read_options(environ))
    thread = threading.Thread(target=_run, args=(agent,), name="otel_mlperf agent", daemon=True)
    thread.start()
    return thread


def _run(agent: Agent) -> None:
    try:
        agent.run()
    except Exception:  # noqa: BLE001 - nobody above a thread
        _log.exception("the agent failed; what it had not read stays in the journal")
