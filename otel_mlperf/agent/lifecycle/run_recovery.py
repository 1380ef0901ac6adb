"""Recovery of runs whose agent has ended too early (``doctor --recover``).

The recovery processes:

- Journals of processes that were killed together with their agent.
- Events that a killed agent had logged but not stored in tables.
- Profiler windows that were not converted.
- Requests that were not delivered before the agent's timeout.
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
from otel_mlperf.agent.lifecycle.node_folder import claim_ended_folder
from otel_mlperf.agent.lifecycle.node_parts import load_or_begin, make_node_parts
from otel_mlperf.agent.lifecycle.run_end_page import is_page_due, queue_page
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

_FILES = ("state", "wal-*", "requests")
PATIENCE_S = 5.0
"""Timeout for delivery. It is short, because a user waits at the terminal."""


class Recovered(NamedTuple):
    """Numbers of requests and profiler windows after a recovery."""

    delivered: int
    """Requests that were delivered now."""
    waiting: int
    """Requests that still wait, because the destination that the caller names has not accepted
    them."""
    withheld: int
    """Requests that still wait, because the caller names no destination for them."""
    windows: int
    """Profiler windows that were converted now."""


class Journals(NamedTuple):
    """Result of reading journals: numbers of journals, and reasons of failures."""

    read: int
    in_use: int
    """Number of journals not read, because a process still records in their folder: reading would
    last until that process ends."""
    failed: list[str]


def recover_journals(environ: Mapping[str, str], folders: list[Path]) -> Journals:
    """Read journals that no agent serves and no process writes; return counts and failures."""
    read, in_use, failed = 0, 0, []
    for folder in folders:
        journals = journals_in(folder)
        if is_served(folder):
            continue
        # An agent started here would run until that process ends, and the user waits at the
        # terminal.
        if any(map(is_written, journals)):
            in_use += len(journals)
            continue
        try:
            serve(folder, replace(_options_for(folder, environ), drain_timeout_s=PATIENCE_S))
        except Exception as error:  # noqa: BLE001 - the other folders are read in any case
            failed.append(f"{folder}: {type(error).__name__}: {error}")
        found = [path for path in journals if path.exists()]
        read += len(journals) - len(found)
        failed += filter(None, map(_read_error, found))
    return Journals(read, in_use, failed)


def _read_error(path: Path) -> str:
    try:
        JournalReader(str(path), is_writable=False).close()
    except JournalError as error:
        return str(error)
    return ""


def _options_for(folder: Path, environ: Mapping[str, str]) -> Options:
    # Ignore journals of other users, which could name any folder; they are not served either.
    meta = first_meta(folder) if is_own(folder) else None
    if meta is None:
        return read_options(environ)
    return read_stored_options(Path(meta.run_folder), environ)


def folders_to_read(run: RunFolder | None) -> list[Path]:
    """Return this node's journal folders of ``run``, or of all runs if ``run`` is None.

    Raises:
        StoreError: on Windows, which has no locks that show which runs are still served.
    """
    if IS_WINDOWS:
        raise StoreError(
            "recovering runs: not possible on Windows; run this command on a machine that records "
            "runs"
        )
    if run is None:
        return folders_with_journals()
    # Only folders of this user, whoever owns the run folder, because journals of other users cannot
    # be removed after reading.
    places = map(Path, folders_of_run(run.facts.id, run.path, user=user_id()))
    return [place for place in places if place.is_dir()]


def deliver_rest(run: RunFolder, environ: Mapping[str, str]) -> Recovered:
    """Convert profiler windows and send requests that wait in a run folder.

    Raises:
        RunServed: an agent still serves the run, and would change files concurrently.
        StoreError: the run folder belongs to another user, who could place links where files are
            written.
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
    found = [path.parent for name in _FILES for path in (run_folder / "agent").glob(f"*/{name}")]
    return sorted({place for place in found if not place.is_symlink()})


def _deliver(run_folder: Path, place: Path, options: Options) -> Recovered:
    with claim_ended_folder(place) as is_left:
        if not is_left:
            raise RunServed(
                f"delivering unsent data of {place.name}: its agent still runs on another machine "
                "or in another container; try again when the agent has ended"
            )
        return _deliver_left(run_folder, place, options, _store_log(run_folder, place, options))


def _store_log(run_folder: Path, place: Path, options: Options) -> AgentState:
    """Store events that a killed agent had logged; return the state that contains them.

    When a container ends, the container's agent is killed and the journals in the container's
    shared memory are removed. Only the event log then remains, and each journal is treated as
    ended.
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
    # The events need no log, because a window's result file is removed only after the state is
    # written.
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
    # Must run after ``settle``, which consumes outcomes, and before the state is written.
    state.pending = parts.outbox.pending
    delivered = before - len(state.pending)
    waiting = parts.outbox.requests_of(parts.sender.accounts)
    write_state(place / "state", state)
    parts.outbox.forget()
    parts.windows.forget(state)
    pending = parts.processor.emitter.waiting
    write_report(run_folder, place.name, parts.processor.accounts.report(pending))
    return Recovered(delivered, waiting, len(state.pending) - waiting, converted)
