"""Event processor, which applies events to the agent's state, for all journals of the node.

The result depends only on the events and the order of events, so a replay writes the same
table parts and creates the same requests.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.agent.delivery.accounts import Accounts
from otel_mlperf.agent.delivery.emit import Emitter
from otel_mlperf.agent.derivation.held_findings import publish_findings, start_finding
from otel_mlperf.agent.derivation.journal_rows import SpanCounts, derive_rows
from otel_mlperf.agent.derivation.made_spans import device_spans, segment_spans
from otel_mlperf.agent.derivation.mark_totals import MarkTotals, keep_counted
from otel_mlperf.agent.derivation.metric_series import Meter
from otel_mlperf.agent.derivation.row_metrics import measure_rows
from otel_mlperf.agent.derivation.row_tables import process_row, store_rows
from otel_mlperf.agent.derivation.running_sums import add_rows
from otel_mlperf.agent.derivation.scalars import Scalars
from otel_mlperf.agent.model.agent_state import AgentState, RankState
from otel_mlperf.agent.model.events import (
    Event,
    Joined,
    Left,
    Mark,
    Named,
    Polled,
    Read,
    WarningHeld,
    WindowConverted,
)
from otel_mlperf.agent.model.journal_state import JournalState
from otel_mlperf.agent.window_conversion import bodies
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.journal.layout import State as Life
from otel_mlperf.journal.ring_scan import ROW_TYPE, rows_of_kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_mlperf.agent.delivery.destination import Destination
    from otel_mlperf.agent.delivery.outbox import Outbox
    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.model.kept_span import SampledSpan
    from otel_mlperf.agent.model.table_rows import TableRows

_log = logging.getLogger("otel_mlperf.agent")
_UNREAD = (
    "the journal disappeared before it was read to its end; the last half second of data (more "
    "on a busy machine) may be missing"
)
"""Used if the agent ended with the user's program, e.g. in a container, so that the extent of the
unread part is unknown."""


class EventProcessor:
    """Processor that updates state, table rows and requests from events."""

    def __init__(
        self,
        state: AgentState,
        tables: TableRows,
        options: Options,
        outbox: Outbox,
        destinations: Sequence[Destination],
        results: Path,
    ) -> None:
        """``results`` is the folder with the result files of converted profiler windows."""
        self._state, self._tables, self._options = state, tables, options
        self._outbox, self._results = outbox, results
        self.accounts = Accounts(state, destinations)
        self._scalars = Scalars(state) if self.accounts.takers("scalars") else None
        self._totals = MarkTotals(state, tables, self._scalars, explicit=options.explicit)
        self.emitter = Emitter(state, options, outbox, self.accounts)

    def settle(self) -> None:
        """Update the accounts with the request outcomes recorded since the last call."""
        for outcome in self._outbox.news():
            self.accounts.settled(outcome)

    def apply(self, event: Event) -> None:  # noqa: C901 - one case for each kind
        """Apply one event. Events must be applied in the order of the log."""
        match event:
            case Joined():
                self._join(event)
            case Named():
                self._name(event)
            case Polled():
                journal = self._state.journals[event.journal]
                self._add_to_sums(journal, event.rows)
                journal.fresh += event.rows
                journal.next, journal.holes = event.next, event.holes
                journal.unread += event.gone
                journal.around = event.around
            case Left():
                self._leave(event)
            case Read():
                self._read_source(event)
            case WarningHeld():
                self._hold_warning(event)
            case Mark():
                self._mark(event)
            case WindowConverted():
                self._state.windows[event.window] = event.digest
                self.emitter.convert(event, bodies(event, self._results))

    def _join(self, event: Joined) -> None:
        journal = self._state.journals[event.journal] = JournalState(event.meta)
        meta, instance = event.meta, journal.instance
        # A forked child may be found before its parent; its metadata describes the same rank.
        if instance not in self._state.ranks or not meta.is_child:
            rank = self._state.ranks.setdefault(instance, RankState(meta, instance))
            rank.live = True
        if not meta.is_child:
            self._state.page_due = True
            self._tables.add(process_row(journal))

    def _name(self, event: Named) -> None:
        journal = self._state.journals[event.journal]
        journal.damaged += event.damaged
        for number, content in event.entries.items():
            if content[0] == "track":
                journal.tracks[content[1]] = content
            else:
                journal.entries[number] = content

    def _add_to_sums(self, journal: JournalState, rows: bytes) -> None:
        try:
            add_rows(journal.sums, np.frombuffer(rows, ROW_TYPE), journal.meta.latest_ns)
        except Exception:  # noqa: BLE001 - the rows themselves are derived all the same
            _log.exception(
                "rank %s: some rows could not be added to the section totals", journal.meta.rank
            )

    def _leave(self, event: Left) -> None:
        self._state.finished.append(event.journal)
        journal = self._state.journals[event.journal]
        journal.left, journal.alive_ns = True, max(journal.alive_ns, event.monotonic_ns)
        journal.is_whole = event.is_whole
        journal.open, journal.cells, journal.words = event.open, event.cells, event.words
        journal.unread += event.damaged

    def _hold_warning(self, warning: WarningHeld) -> None:
        journal = self._state.journals.get(warning.journal)
        if journal is not None or not warning.journal:
            self._tables.add_warning(journal.meta if journal else None, warning)
        started = start_finding(self._state, warning)
        if started is not None:
            self._keep_moments([started])
            if self._scalars:
                self._scalars.start_finding(journal.meta if journal else None, warning)

    def _mark(self, mark: Mark) -> None:
        state = self._state
        state.began_ns = state.began_ns or mark.unix_ns
        for name, seen in mark.seen.items():
            journal = state.journals[name]
            journal.open, journal.cells, journal.words = seen.open, seen.cells, seen.words
            journal.alive_ns = max(journal.alive_ns, seen.alive_ns)
        kept: dict[str, list[SampledSpan]] = {}
        for journal in state.journals.values():
            rank = self._state.rank_of(journal)
            kept.setdefault(rank.instance, []).extend(self._work(journal, rank, mark))
        self._totals.publish(mark)
        publish_findings(state, mark)
        for instance, spans in kept.items():
            self.emitter.keep(state.ranks[instance], spans)
        if self._scalars and (due := self._scalars.take_due(mark)):
            self.emitter.keep_scalars(due)
        # Must run after the spans are emitted, because exemplars refer to their traces.
        self.emitter.export_if_due(mark)
        # Must run last: the final counts were just published, and are now moved to the rank.
        for name in [n for n, journal in state.journals.items() if journal.left]:
            self._remove(name)

    def _work(self, journal: JournalState, rank: RankState, mark: Mark) -> list[SampledSpan]:
        counts, spans = self._derive(journal, rank)
        # The word is missing if its value is implausible. The difference is negative if an earlier
        # value was too high, because it had been overwritten.
        dropped = journal.words.get(Word.LOST_RING_FULL, journal.ring_full) - journal.ring_full
        journal.ring_full += dropped
        self.accounts.measured(counts, dropped)
        if journal.left and not journal.meta.is_child:
            if journal.outcome == "running":
                journal.outcome = _outcome(journal)
            if journal.outcome == "killed" and not journal.is_whole:
                journal.error = ["", _UNREAD]
            self._tables.add(process_row(journal))
            rank.live = False
            if self._scalars:
                self._scalars.end(journal)
        return spans + segment_spans(journal, mark.monotonic_ns)

    def _derive(
        self, journal: JournalState, rank: RankState
    ) -> tuple[SpanCounts, list[SampledSpan]]:
        options = self._options
        awaiting = b"".join(step.rows for step in journal.steps_awaiting_gpu.values())
        waiting = np.frombuffer(journal.fresh + journal.held + awaiting, ROW_TYPE)
        waited = journal.waiting_rows
        try:
            rows = derive_rows(journal, rank, options.policy, options.limits)
            measure_rows(rows, journal, Meter(rank, explicit=options.explicit))
            store_rows(rows, journal, self._tables)
            if self._scalars:
                self._scalars.add_rows(rows, journal.meta)
        except Exception:  # noqa: BLE001 - whatever it is, the next agent would meet it too
            # Drop these rows and count them as lost, because a replay would fail on them again.
            _log.exception(
                "rank %s: some rows could not be processed and are lost", journal.meta.rank
            )
            journal.fresh = journal.held = journal.payloads = b""
            journal.steps_awaiting_gpu = {}
            lost = len(rows_of_kind(waiting, Kind.SECTION))
            # Rows that waited were already counted as created, at an earlier mark.
            return SpanCounts(created=lost - waited, failed=lost), []
        return rows.counts, rows.spans

    def _remove(self, name: str) -> None:
        journal = self._state.journals.pop(name)
        rank = self._state.rank_of(journal)
        keep_counted(rank, journal)

    def _read_source(self, read: Read) -> None:
        state = self._state
        state.metrics.update((metric.name, metric) for metric in read.metrics)
        counters = {name for name, m in state.metrics.items() if m.instrument == "counter"}
        meters = {"": Meter(state)} | {
            name: Meter(self._state.rank_of(journal)) for name, journal in state.journals.items()
        }
        for meter in meters.values():
            meter.drop_source(read.source)
        for reading in read.readings:
            if reading.journal in meters:
                meters[reading.journal].read(read.source, reading, read.unix_ns, counters)
                journal = state.journals.get(reading.journal)
                meta = journal.meta if journal else None
                self._tables.add_reading(meta, reading, read.unix_ns)
                if self._scalars:
                    self._scalars.read(meta, reading, read.unix_ns)
        self._keep_moments(device_spans(state, read))

    def _keep_moments(self, moments: Sequence[tuple[JournalState, SampledSpan]]) -> None:
        for journal, span in moments:
            self.accounts.measured(SpanCounts(created=1), 0)
            self.emitter.keep(self._state.rank_of(journal), [span])


def _outcome(journal: JournalState) -> str:
    """Return the outcome from the journal's header, in case the run's own row is missing."""
    if journal.words.get(Word.STATE) != Life.CLOSED:
        return "killed"
    return "failed" if journal.words.get(Word.FAILED) else "finished"
