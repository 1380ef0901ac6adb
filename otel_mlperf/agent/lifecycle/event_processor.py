"""What follows from each event, for every journal of the node?

A function of the events alone: given the same ones in the same order, a new agent writes the same
parts and makes the same requests.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.conversion.window_results import bodies
from otel_mlperf.agent.delivery.accounts import Accounts
from otel_mlperf.agent.delivery.emit import Emitter
from otel_mlperf.agent.derivation.cell_values import user_values
from otel_mlperf.agent.derivation.instrument_totals import RankTotals, instrument_row, remember
from otel_mlperf.agent.derivation.journal_work import work_out
from otel_mlperf.agent.derivation.lost_devices import device_spans
from otel_mlperf.agent.derivation.mark_work import MarkOutcome, Task
from otel_mlperf.agent.derivation.metric_series import Meter
from otel_mlperf.agent.derivation.process_rows import process_row
from otel_mlperf.agent.derivation.segments import segments
from otel_mlperf.agent.model.agent_state import AgentState, RankState
from otel_mlperf.agent.model.events import (
    Event,
    Joined,
    Left,
    Mark,
    Named,
    Polled,
    Read,
    WindowConverted,
)
from otel_mlperf.agent.model.journal_state import JournalState
from otel_mlperf.journal.journal_reader import OPEN_TYPE
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.journal.layout import State as Life
from otel_mlperf.journal.ring_scan import ROW_TYPE, rows_of_kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_mlperf.agent.delivery.destination import Destination
    from otel_mlperf.agent.delivery.outbox import Outbox
    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.model.kept_span import Kept
    from otel_mlperf.agent.model.table_rows import TableRows
    from otel_mlperf.journal.ring_scan import Rows
    from otel_mlperf.names import Metric

_log = logging.getLogger("otel_mlperf.agent")
_TOTALS_NS: Final = 5 * 10**9
_LOST: Final = {
    int(Word.LOST_PAYLOADS): "payloads",
    int(Word.LOST_OPEN): "open_sections",
    int(Word.LOST_ENTRIES): "names",
    int(Word.LOST_CELLS): "cells",
    int(Word.LOST_VALUES): "values",
    int(Word.INTERNAL_ERRORS): "internal",
}


class EventProcessor:
    """Applies events to the state, the tables and the requests."""

    def __init__(
        self,
        state: AgentState,
        tables: TableRows,
        options: Options,
        outbox: Outbox,
        destinations: Sequence[Destination],
        results: Path,
    ) -> None:
        """``results`` is where converted profiler windows leave their requests."""
        self._state, self._tables, self._options = state, tables, options
        self._outbox, self._results = outbox, results
        self.accounts = Accounts(state, destinations)
        self.emitter = Emitter(state, options, outbox, self.accounts)

    def settle(self) -> None:
        """Enters what has become of requests into the accounts."""
        for outcome in self._outbox.news():
            self.accounts.settled(outcome)

    def tell_accounts(self, now_ns: int) -> None:
        """A last request with what has become of everything before it."""
        self.emitter.export_accounts(now_ns)

    def apply(self, event: Event) -> None:
        """One event."""
        match event:
            case Joined():
                self._join(event)
            case Named():
                self._name(event)
            case Polled():
                journal = self._state.journals[event.journal]
                journal.fresh += event.rows
                journal.next, journal.holes = event.next, event.holes
            case Left():
                self._leave(event)
            case Read():
                self._read_source(event)
            case Mark():
                self._mark(event)
            case WindowConverted():
                self._state.windows[event.window] = event.digest
                self.emitter.convert(event, bodies(event, self._results))

    def _join(self, event: Joined) -> None:
        journal = self._state.journals[event.journal] = JournalState(event.meta)
        meta, instance = event.meta, journal.instance
        if instance not in self._state.ranks or not meta.is_child:
            rank = self._state.ranks.setdefault(instance, RankState(meta, instance))
            rank.live = True
        if not meta.is_child:
            self._tables.add("processes", process_row(journal))

    def _name(self, event: Named) -> None:
        journal = self._state.journals[event.journal]
        for number, content in event.entries.items():
            if content[0] == "track":
                journal.tracks[content[1]] = content
            else:
                journal.entries[number] = content

    def _leave(self, event: Left) -> None:
        self._state.finished.append(event.journal)
        journal = self._state.journals[event.journal]
        journal.left, journal.alive_ns = True, max(journal.alive_ns, event.monotonic_ns)
        journal.open, journal.cells, journal.words = event.open, event.cells, event.words

    def _mark(self, mark: Mark) -> None:
        state = self._state
        state.began_ns = state.began_ns or mark.unix_ns
        for name, seen in mark.seen.items():
            journal = state.journals[name]
            journal.open, journal.cells, journal.words = seen.open, seen.cells, seen.words
            journal.alive_ns = max(journal.alive_ns, seen.alive_ns)
        kept: dict[str, list[Kept]] = {}
        for journal in state.journals.values():
            rank = self._rank(journal)
            kept.setdefault(rank.instance, []).extend(self._work(journal, rank, mark))
        self._total(mark)
        for instance, spans in kept.items():
            self.emitter.keep(state.ranks[instance], spans)
        self.emitter.export_if_due(mark)
        for name in [n for n, journal in state.journals.items() if journal.left]:
            self._remove(name)

    def _rank(self, journal: JournalState) -> RankState:
        return self._state.rank_of(journal)

    def _work(self, journal: JournalState, rank: RankState, mark: Mark) -> list[Kept]:
        outcome = self._worked_out(journal, rank)
        dropped = journal.words.get(Word.LOST_RING_FULL, 0) - journal.ring_full
        journal.ring_full += dropped
        self.accounts.measured(outcome, dropped)
        if journal.left and not journal.meta.is_child:
            if journal.outcome == "running":
                journal.outcome = _outcome(journal)
            self._tables.add("processes", process_row(journal))
            rank.live = False
        return outcome.kept + segments(journal, mark.monotonic_ns)

    def _worked_out(self, journal: JournalState, rank: RankState) -> MarkOutcome:
        rows = np.frombuffer(journal.fresh + journal.held, ROW_TYPE)
        waited = len(journal.held) // ROW_TYPE.itemsize
        try:
            options = self._options
            task = Task(journal, rank, options.policy, self._tables, explicit=options.explicit)
            return work_out(task)
        except Exception:  # noqa: BLE001 - whatever it is, the next agent would meet it too
            # The same events would stop the next agent too: these rows are given up, counted.
            _log.exception("%s: rows that could not be worked out are lost", journal.meta.rank)
            journal.fresh = journal.held = journal.payloads = b""
            gone = len(rows_of_kind(rows, Kind.SECTION))
            return MarkOutcome(created=gone - waited, failed=gone)

    def _remove(self, name: str) -> None:
        """Forgets a journal that has ended; what its counters counted stays counted."""
        journal = self._state.journals.pop(name)
        rank = self._rank(journal)
        for reason, count in _lost(journal).items():
            rank.lost[reason] = rank.lost.get(reason, 0) + count
        for value in user_values(journal):
            remember(rank, value)

    def _read_source(self, read: Read) -> None:
        """What sensors said, of ranks and of the node."""
        state = self._state
        meters = {"": Meter(state)} | {
            name: Meter(self._rank(journal)) for name, journal in state.journals.items()
        }
        for meter in meters.values():
            meter.drop_source(read.source)
        for reading in read.readings:
            if reading.journal in meters:
                meters[reading.journal].read(read.source, reading, read.unix_ns)
                journal = state.journals.get(reading.journal)
                meta = journal.meta if journal else None
                self._tables.add_reading(meta, reading, read.unix_ns)
        for journal, span in device_spans(state, read):
            self.accounts.measured(MarkOutcome(created=1), 0)
            self.emitter.keep(self._rank(journal), [span])

    def _total(self, mark: Mark) -> None:
        """What is as it is at the mark; now and then the tables get the program's own values."""
        state = self._state
        is_due = mark.unix_ns - state.totalled_ns >= _TOTALS_NS
        state.totalled_ns = mark.unix_ns if is_due else state.totalled_ns
        totals, told = RankTotals(explicit=self._options.explicit), set()
        for journal in state.journals.values():
            rank = self._rank(journal)
            meter = Meter(rank)
            for value in user_values(journal):
                self._describe(rank, value.metric)
                totals.publish(rank, meter, value)
            if is_due or journal.left:
                told.add(rank.instance)
            if not journal.meta.is_child:
                self._read_rank(journal, meter, mark)
        for instance, reading in totals.readings():
            if instance in told:
                self._tables.add_reading(state.ranks[instance].meta, reading, mark.unix_ns)
        self._tell_lost()

    def _describe(self, rank: RankState, metric: Metric) -> None:
        """What the numbers of an instrument are, once: the tables of readings do not say."""
        about = [metric.unit, metric.instrument]
        if rank.user.get(metric.name) != about:
            rank.user[metric.name] = about
            self._tables.add("instruments", instrument_row(rank.meta, metric))

    def _tell_lost(self) -> None:
        lost = {rank.instance: dict(rank.lost) for rank in self._state.ranks.values() if rank.live}
        for journal in self._state.journals.values():
            of_rank = lost.setdefault(self._rank(journal).instance, {})
            for reason, count in _lost(journal).items():
                of_rank[reason] = of_rank.get(reason, 0) + count
        for instance, reasons in lost.items():
            meter = Meter(self._state.ranks[instance])
            for reason, count in reasons.items():
                meter.set(names.JOURNAL_LOST.name, {names.ERROR_TYPE: reason}, count)

    def _read_rank(self, journal: JournalState, meter: Meter, mark: Mark) -> None:
        meter.set(names.RUN_START_TIME.name, {}, journal.meta.unix_ns / 1e9)
        overhead = journal.sections * journal.meta.cost_ns
        meter.set(names.OVERHEAD_TIME.name, {}, overhead / 1e9)
        meter.drop(names.OPEN_AGE)
        table = np.frombuffer(journal.open, OPEN_TYPE)
        main = table[table["track"] == _main_track(table)]
        if len(main) and not journal.left:
            inner = main[np.argmax(main["start"])]
            name = journal.entries.get(int(inner["name"]), ["", "other"])[1]
            age = (mark.monotonic_ns - int(inner["start"])) / 1e9
            meter.set(names.OPEN_AGE.name, {names.SECTION_NAME: name}, max(0.0, age))


def _outcome(journal: JournalState) -> str:
    """How it ended, as far as its header says: the ring had no room for the run's own row."""
    if journal.words.get(Word.STATE) != Life.CLOSED:
        return "killed"
    return "failed" if journal.words.get(Word.FAILED) else "finished"


def _lost(journal: JournalState) -> dict[str, int]:
    """What the journal counts as lost beside rows, by reason."""
    return {reason: count for word, reason in _LOST.items() if (count := journal.words.get(word))}


def _main_track(table: Rows) -> int:
    """The track of the section that has been open longest: the run's."""
    return int(table["track"][np.argmin(table["start"])]) if len(table) else 0
