"""Recovery of what runs left behind and no agent reads any more.

It covers:

- Journals of processes that were killed together with their agent.
- Events that a killed agent had logged but not stored.
- Profiler windows that were not converted.
- Requests that no server had accepted when the agent's time was over.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.agent.delivery.accounts import write_report
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.intake.write_ahead_log import Log
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.lifecycle.agent_process import first_meta, serve
from otel_mlperf.agent.lifecycle.ended_run import is_page_due, queue_page
from otel_mlperf.agent.lifecycle.node_folder import claim_left_folder
from otel_mlperf.agent.lifecycle.node_parts import load_or_begin, make_node_parts
from otel_mlperf.agent.model.agent_options import Options, read_options, read_stored_options
from otel_mlperf.agent.model.agent_state import AgentState, write_state
from otel_mlperf.agent.readings.sensor_set import SensorSet
from otel_mlperf.errors import JournalError, RunServed, StoreError
from otel_mlperf.journal.folder_lock import is_served
from otel_mlperf.journal.journal_folder import (
    folders_of_run,
    folders_with_journals,
    is_own,
    journal_folder,
    journals_in,
)
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.stored_wait import is_written
from otel_mlperf.portability import IS_WINDOWS, user_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.store.run_folders import RunFolder

_LEFT = ("state", "wal-*", "requests")
PATIENCE_S = 5.0
"""Time limit for a server that does not answer: the user waits at the terminal."""


class Recovered(NamedTuple):
    """Counts of what was found and done."""

    delivered: int
    """Requests that a server accepted now."""
    waiting: int
    """Requests that still wait: the server that the caller names has not accepted them."""
    withheld: int
    """Requests that still wait: the caller names no destination for them."""
    windows: int
    """Profiler windows that were converted now."""


class Journals(NamedTuple):
    """Number of journals that were read to their end, and why other journals were not."""

    read: int
    in_use: int
    """Journals next to one whose process goes on recording: reading them would not end before that.
"""
    failed: list[str]


def recover_journals(environ: Mapping[str, str], folders: list[Path]) -> Journals:
    """Read the journals that no agent serves and no process writes; a bad one stops no other."""
    read, in_use, failed = 0, 0, []
    for folder in folders:
        there = journals_in(folder)
        if is_served(folder):
            continue
        # An agent started here would run for as long as that process lives, and the user waits at
        # the terminal.
        if any(map(is_written, there)):
            in_use += len(there)
            continue
        try:
            serve(folder, replace(_options_for(folder, environ), drain_timeout_s=PATIENCE_S))
        except Exception as error:  # noqa: BLE001 - the other folders are read in any case
            failed.append(f"{folder}: {type(error).__name__}: {error}")
        left = [path for path in there if path.exists()]
        read += len(there) - len(left)
        failed += filter(None, map(_trouble, left))
    return Journals(read, in_use, failed)


def _trouble(path: Path) -> str:
    """Return why a journal cannot be read; empty if it can."""
    try:
        JournalReader(str(path), is_writable=False).close()
    except JournalError as error:
        return str(error)
    return ""


def _options_for(folder: Path, environ: Mapping[str, str]) -> Options:
    # A journal of another user could name any folder; such a one is not served anyway.
    meta = first_meta(folder) if is_own(folder) else None
    if meta is None:
        return read_options(environ)
    return read_stored_options(Path(meta.run_folder), environ)


def folders_to_read(run: RunFolder | None) -> list[Path]:
    """Return journal folders on this node: of one run, or those in shared memory of all.

    Raises:
        StoreError: Windows has no locks that show whose runs are still served.
    """
    if IS_WINDOWS:
        raise StoreError(
            "recovering runs: not possible on Windows; run this command on a machine that records "
            "runs"
        )
    if run is None:
        return folders_with_journals()
    # This user's folders, whoever owns the run folder: those of other users could not be read to
    # the end and removed.
    places = map(Path, folders_of_run(run.facts.id, run.path, user=user_id()))
    return [place for place in places if place.is_dir()]


def deliver_rest(run: RunFolder, environ: Mapping[str, str]) -> Recovered:
    """Convert the profiler windows and send the requests that wait in a run's folder.

    Raises:
        RunServed: an agent of this node works on it; its files would change concurrently.
        StoreError: it is another user's, who may have put links where it is written to.
    """
    run_folder = run.path
    if (owner := run_folder.stat().st_uid) != user_id():
        raise StoreError(
            f"delivering unsent data of run {run.short_id}: {run_folder} belongs to user {owner}; "
            "run this command as that user"
        )
    if _is_served(run):
        raise RunServed(
            f"delivering unsent data of run {run.short_id}: the agent of the run still runs on "
            "this node and delivers the data itself; try again when the agent has ended"
        )
    options = read_stored_options(run_folder, environ)
    done = [_deliver(run_folder, place, options) for place in _folders_of_agents(run_folder)]
    return Recovered(*map(sum, zip(*done, strict=True))) if done else Recovered(0, 0, 0, 0)


def _is_served(run: RunFolder) -> bool:
    places = (
        journal_folder(run.facts.id, str(run.path)),
        journal_folder(run.facts.id, str(run.path), ""),
    )
    return any(is_served(Path(place)) for place in places)


def _folders_of_agents(run_folder: Path) -> list[Path]:
    """Return folders, not links, in which an agent has left its state, log or requests."""
    left = [path.parent for name in _LEFT for path in (run_folder / "agent").glob(f"*/{name}")]
    return sorted({place for place in left if not place.is_symlink()})


def _deliver(run_folder: Path, place: Path, options: Options) -> Recovered:
    with claim_left_folder(place) as is_left:
        if not is_left:
            raise RunServed(
                f"delivering unsent data of {place.name}: its agent still runs on another machine "
                "or in another container; try again when the agent has ended"
            )
        return _deliver_left(run_folder, place, options, _store_log(run_folder, place, options))


def _store_log(run_folder: Path, place: Path, options: Options) -> AgentState:
    """Store events that a killed agent had logged, and return the state that contains them.

    The program of a container takes its agent with it, and the journals in the container's shared
    memory. The log is then all that is left, and each journal ends with it.
    """
    state = load_or_begin(run_folder, place)
    logged = Log(place, state.segment, state.logged).replay()
    if not state.journals and next(logged, None) is None:
        return state
    with TemporaryDirectory() as no_journals:
        tail = Tail(Path(no_journals))
        Agent(place, tail, replace(options, drain_timeout_s=0.0), SensorSet()).run()
    return load_or_begin(run_folder, place)


def _deliver_left(run_folder: Path, place: Path, options: Options, state: AgentState) -> Recovered:
    parts = make_node_parts(run_folder, place, options, state)
    converted = 0
    # No log is needed here: a window's result is removed only after the state that contains it.
    for event in parts.windows.rest(state):
        parts.processor.apply(event)
        converted += not event.lost
    if is_page_due(state, parts.processor):
        queue_page(run_folder, place, state, parts.processor)
    before = len(parts.outbox.pending)
    parts.sender.start()
    parts.sender.drain(PATIENCE_S)
    parts.sender.stop()
    parts.processor.settle()
    # After settling, which removes outcomes; before the state, which the next reader relies on.
    state.pending = parts.outbox.pending
    delivered = before - len(state.pending)
    waiting = parts.outbox.requests_of(parts.sender.accounts)
    write_state(place / "state", state)
    parts.outbox.forget()
    parts.windows.forget(state)
    pending = parts.processor.emitter.waiting
    write_report(run_folder, place.name, parts.processor.accounts.report(pending))
    return Recovered(delivered, waiting, len(state.pending) - waiting, converted)
