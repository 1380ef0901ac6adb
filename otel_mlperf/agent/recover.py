"""What did runs leave behind that nobody reads any more?

Journals of processes that were killed together with their agent, and requests that no server had
taken when the agent's time was over.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.agent.accounts import Accounts, write_report
from otel_mlperf.agent.options import Options, read_options
from otel_mlperf.agent.process import is_served, serve
from otel_mlperf.agent.requests import Requests
from otel_mlperf.agent.sender import Sender
from otel_mlperf.agent.state import load_state, write_state
from otel_mlperf.journal.folder import SHARED_MEMORY, SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping


PATIENCE_S = 5.0
"""For a server that does not answer; somebody waits at the terminal."""


class Recovered(NamedTuple):
    """What was found and done."""

    journals: int
    """Journals read to their end."""
    delivered: int
    """Requests that a server took now."""
    waiting: int
    """Requests that still wait: there is no server, or it does not answer."""


def journal_folders(shared_memory: str = SHARED_MEMORY) -> list[Path]:
    """The journal folders of this user's runs on this node that hold a journal."""
    root = Path(shared_memory) / f"otel_mlperf-{os.getuid()}"
    return sorted({path.parent for path in root.glob(f"*/*{SUFFIX}")})


def recover_journals(environ: Mapping[str, str], folders: list[Path]) -> int:
    """Reads the journals that no agent serves; returns how many there were."""
    found = 0
    for folder in folders:
        if not is_served(folder):
            found += len(list(folder.glob(f"*{SUFFIX}")))
            serve(folder, dict(environ) | {"OTEL_MLPERF_DRAIN_S": str(PATIENCE_S)})
    return found


def deliver_rest(run_folder: Path, environ: Mapping[str, str]) -> Recovered:
    """Sends the requests that wait in a run folder."""
    options = read_options(environ)
    delivered = waiting = 0
    for place in sorted((run_folder / "agent").glob("*")):
        if (place / "requests").is_dir():
            taken, left = _deliver(run_folder, place, options)
            delivered, waiting = delivered + taken, waiting + left
    return Recovered(0, delivered, waiting)


def _deliver(run_folder: Path, place: Path, options: Options) -> tuple[int, int]:
    state = load_state(place / "state")
    requests = Requests(place / "requests", options.outbox_bytes)
    requests.load(state.request, state.pending)
    before = len(requests.pending)
    if options.traces or options.metrics:
        sender = Sender(requests, options)
        sender.start()
        sender.drain(PATIENCE_S)
        sender.stop()
    accounts = Accounts(state, options)
    for outcome in requests.news():
        accounts.settled(outcome)
    state.pending = requests.pending
    write_state(place / "state", state)
    requests.forget()
    write_report(run_folder, place.name, accounts.report(requests.waiting))
    return before - len(state.pending), len(state.pending)
