"""Recorder composed of all parts of a recording, and its replacement in a forked child.

The parts depend on each other in layers: core, sections, steps, instruments. A forked child creates
its own journal when it records its first section. Sections that were open at the fork belong to the
parent process; in the child they have no effect.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.folder_lock import is_served
from otel_mlperf.journal.journal_folder import (
    SHARED_MEMORY,
    fitting_rows,
    journal_folder,
    make_private,
    new_journal_name,
)
from otel_mlperf.journal.journal_writer import Journal
from otel_mlperf.recorder.core import recording
from otel_mlperf.recorder.core.faults import count_in, internal_error, warn_once
from otel_mlperf.recorder.core.forks import call_in_children
from otel_mlperf.recorder.core.held_contexts import hold_contexts
from otel_mlperf.recorder.core.recording import Recording
from otel_mlperf.recorder.instruments.aggregated_sections import AggregatedSections
from otel_mlperf.recorder.instruments.cells import Cells
from otel_mlperf.recorder.instruments.instrument_series import SeriesInUse
from otel_mlperf.recorder.instruments.logged_values import Values
from otel_mlperf.recorder.instruments.marks import Marks
from otel_mlperf.recorder.lifecycle.clocks import start_clocks
from otel_mlperf.recorder.sections.parents import Parents
from otel_mlperf.recorder.sections.section_cases import RecordedSections
from otel_mlperf.recorder.stepping.step_recording import Stepping

if TYPE_CHECKING:
    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.settings.config import Config

_hooked = False


class Recorder(Recording):
    """Recording of one process with all its parts; at most one is active."""

    shows_summary = False
    """Whether this process, as the first rank, prints the run's start and summary."""
    is_left = False
    """Whether this process is a forked child, and the recording belongs to its parent process."""

    def __init__(self, journal: Journal, meta: JournalMeta, config: Config) -> None:
        super().__init__(journal, meta, config)
        self.parents = Parents(self)
        self.sections = RecordedSections(self, self.parents)
        self.stepping = Stepping(self, self.sections, self.parents)
        self.sections.steps = self.stepping  # before anything is recorded
        self.sections.profiles.steps = self.stepping
        self.cells = Cells(self)
        self.marks = Marks(journal, self.cells)
        self.aggregated = AggregatedSections(self, self.parents, self.cells, self.sections.new)
        self.stepping.at_first_step.append(self.aggregated.places.begin_phase)
        self.series = SeriesInUse(self, self.parents, self.cells)
        self.values = Values(self, self.parents, self.stepping)
        self.kept: dict[type, Any] = {}
        """State of upper layers for this recording, by class; released with the recording.

        Not a WeakKeyDictionary by recording: its callbacks are written in Python, and the
        interpreter would drop exceptions that a signal handler raises in them.
        """

    def retire(self) -> None:
        """End the recording, so that sections that are open, or opened later, write nothing."""
        # Set the flag first, for all code that checks it. The fast paths do not check it, and are
        # redirected below: series to the slow path, sections to scratch memory.
        self.is_retired = True
        self.series.retire()
        for call in self.at_retire:
            call()
        self.journal.lease = _NO_LEASE
        self.sections.binding.retire()


class _NoLease:
    end = 0
    next: dict[int, Any] = {}  # noqa: RUF012 - never filled
    take = itertools.repeat(1).__next__


_NO_LEASE: Any = _NoLease()


def make_recorder(meta: JournalMeta, config: Config) -> Recorder:
    """Return a recorder with a new journal, in shared memory or, if that is full, on disk.

    Raises:
        JournalError: neither shared memory nor the disk has room for the journal.
    """
    file = new_journal_name(meta.rank, os.getpid())
    shared = journal_folder(meta.run_id, meta.run_folder, key=meta.run_key)
    on_disk = journal_folder(meta.run_id, meta.run_folder, "", meta.run_key)
    if shared == on_disk:
        warn_once("%s is not writable: the journal is stored in the run folder, where a slow disk "
                  "can delay the program", SHARED_MEMORY)  # fmt: skip
    for folder in dict.fromkeys((shared, on_disk)):
        path = os.path.join(folder, file)
        try:
            make_private(folder)
            return Recorder(
                Journal(path, fitting_rows(folder, config.journal_rows), meta), meta, config
            )
        except JournalError as error:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
            if folder == on_disk:
                raise
            warn_once("%s; the journal is stored in the run folder, where a slow disk can delay "
                      "the program", error)  # fmt: skip
    raise AssertionError  # the last folder returned or raised


def watch_forks() -> None:
    """Register the fork handler, so that forked children record into journals of their own."""
    global _hooked
    if not _hooked:
        _hooked = True
        call_in_children(_leave_to_parent)


def _leave_to_parent() -> None:
    recorder: Recorder | None = recording.unreplaced()
    if recorder is None or recorder.is_left:
        return
    # The journal is shared and belongs to the parent: no code may write to it any more. It stays
    # mapped, because open sections still refer to it.
    recorder.retire()
    recorder.replacement = lambda: _begin_in_child(recorder)
    recording.refresh()  # clears cached names, so that the first section calls active()
    count_in(None)
    recorder.is_left = True


def _begin_in_child(parent: Recorder) -> Recorder | None:
    """Create the recorder of a forked child that records a first section; None if that fails."""
    import msgspec

    # First: creating the journal is tried only once, and must not be repeated for sections that a
    # signal handler opens in the meantime.
    parent.replacement = lambda: None
    recording.activate(None)
    try:
        unix_ns, monotonic_ns = start_clocks()
        meta = msgspec.structs.replace(
            parent.meta,
            pid=os.getpid(),
            thread=threading.get_native_id(),
            is_child=True,
            monotonic_ns=monotonic_ns,
            unix_ns=unix_ns,
        )
        recorder = make_recorder(meta, parent.config)
        recorder.registry.set_phase(parent.registry.phase)
    except Exception as error:  # noqa: BLE001 - no room for a journal: the child goes on without
        internal_error(error)
        return None
    count_in(recorder.journal)
    hold_contexts(recorder)
    recording.activate(recorder)
    _serve_elsewhere(recorder, parent)
    return recorder


def _serve_elsewhere(recorder: Recorder, parent: Recorder) -> None:
    """Start an agent if the child's journal is in another folder than the parent's.

    This happens if shared memory is full by now. The run's agent reads only the parent's folder.
    """
    folder = os.path.dirname(recorder.journal.path)
    if folder == os.path.dirname(parent.journal.path):
        return
    from otel_mlperf.recorder.lifecycle.agent_launch import AgentWatch

    try:
        if not is_served(Path(folder)):
            AgentWatch(recorder.journal, recorder.meta, recorder.config).start()
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
