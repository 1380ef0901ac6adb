"""Main loop of the agent: intervals of polling, derivation and flushing.

The agent polls the journals twice a second and logs the rows durably. It polls sooner if a quick
check shows that a journal fills up or has ended. Every second it derives data from the rows, while
a thread makes room in the journals. Tables are flushed at growing intervals. After the last journal
has ended, the agent delivers pending requests, with a timeout, and ends.
"""

from __future__ import annotations

import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.delivery.accounts import write_report
from otel_mlperf.agent.delivery.destination import account_of
from otel_mlperf.agent.delivery.publish import Publisher, SumsPublisher
from otel_mlperf.agent.delivery.store_destination import STORE, StoreDestination
from otel_mlperf.agent.intake.event_queue import EventQueue
from otel_mlperf.agent.intake.spiller import Spiller
from otel_mlperf.agent.intake.write_ahead_log import Log
from otel_mlperf.agent.lifecycle.node_parts import load_or_begin, make_node_parts
from otel_mlperf.agent.lifecycle.run_end_page import is_page_due, queue_page
from otel_mlperf.agent.model.agent_state import AgentState, write_state
from otel_mlperf.agent.model.events import Joined, Left
from otel_mlperf.agent.readings.reading_rounds import ReadingRounds, find_used
from otel_mlperf.agent.readings.sensor_set import this_machine
from otel_mlperf.errors import StoreError
from otel_mlperf.journal.journal_folder import journals_in
from otel_mlperf.store.parts import window_host, write_as_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from otel_mlperf.agent.intake.tail import Tail
    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.model.events import Event
    from otel_mlperf.agent.readings.sensor_set import SensorSet

_log = logging.getLogger("otel_mlperf.agent")
LOOK_S: Final = 0.5
GLANCE_S: Final = 0.1
_BUSY: Final = 0.1
"""If new rows fill at least this share of a ring, the next poll starts sooner."""
_BUSY_POLL_S: Final = 0.01
_MARK_NS: Final = 10**9
_LAST_S: Final = 2.0
"""Timeout for the final request with the accounts, after all other requests are delivered."""
_COMPACT_EVERY: Final = 8
"""Number of table parts between compactions."""
_MAX_ROWS: Final = 50_000
"""Number of rows in memory that triggers a flush."""
_MAX_SPANS: Final = 2_500
"""Number of spans in memory that triggers a flush. A span needs ten times the memory of a row."""


def look_interval_s(readings_s: float) -> float:
    """Return the poll interval: the interval of readings, but at least 0.1 s and at most 0.5 s."""
    return min(LOOK_S, max(GLANCE_S, readings_s))


class Agent:
    """Agent of one run on one node."""

    def __init__(
        self, folder: Path, tail: Tail, options: Options, machine: SensorSet | None = None
    ) -> None:
        """Load the state in ``folder`` (the agent's folder in a run folder) and replay the log.

        ``machine`` contains the sensors to read (default: those that ``options`` select).
        """
        self._folder, self._host = folder, folder.name
        self.run_folder = folder.parents[1]
        self._tail, self._options = tail, options
        self._look_s = look_interval_s(options.readings_s)
        self._state_path = self._folder / "state"
        self._state: AgentState = load_or_begin(self.run_folder, self._folder)
        parts = make_node_parts(self.run_folder, self._folder, options, self._state)
        self._outbox, self._rows = parts.outbox, parts.rows
        self._windows, self._processor, self._sender = parts.windows, parts.processor, parts.sender
        self._store = next(
            made for made in parts.destinations if isinstance(made, StoreDestination)
        )
        self._log = Log(self._folder, self._state.segment, self._state.logged)
        self._queue = EventQueue(self._log, tail, options.max_outbox_bytes)
        self._spiller = Spiller(self._queue)
        machine = machine or this_machine(options, self.run_folder, tail.take_fullest, tail.folder)
        self._readings = ReadingRounds(
            machine, options.readings_s, used=partial(find_used, self._state.journals)
        )
        self._publisher, self._sums = Publisher(tail.folder), SumsPublisher(tail.folder)
        self._marked_ns = time.monotonic_ns()
        # After the next flush, the tables contain the sections that ended before this time:
        # monotonic and Unix, in ns.
        self._until_ns = 0, 0
        self._replay()

    def _replay(self) -> None:
        count = 0
        # Do not log the events again: they stay in the log until a written state contains them.
        for event in self._log.replay():
            self._processor.apply(event)
            count += 1
        if count:
            _log.info("continued the work of an earlier agent: %d events replayed", count)
        # Must run after the replay, which determines the read position of each journal.
        self._tail.resume(self._state)
        self._put_and_process(self._tail.missing(self._state))
        # Must run last: during the replay, requests may turn out to be already settled.
        self._sender.start()

    def run(
        self,
        is_mine: Callable[[], bool] = lambda: True,
        quieten: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Run until the last journal has ended and its data is delivered, or delivery times out.

        The agent also ends if ``is_mine`` returns False, because another agent then serves the
        journals. ``quieten`` is called once, with the native id of the thread that makes room in
        the journals, to lower the priority of all other threads.
        """
        self._spiller.start()
        quieten(self._spiller.native_id or 0)
        while True:
            began = time.monotonic()
            if not is_mine():
                _log.warning("another agent serves the journals now: this agent ends")
                self._stop()
                self._close()
                return
            with self._spiller.at_work():
                self.tick()
            if not len(self._tail) and not self._state.journals:
                break
            self._pause(began)
        until = time.monotonic() + self._options.drain_timeout_s
        while self._windows.waiting and time.monotonic() < until:
            self._put_and_process([*self._windows.step(self._state)])
            time.sleep(GLANCE_S)
        self._queue_page()
        # Export the final accounts only after everything is delivered. They are a request too,
        # hence the second drain.
        if self._sender.drain(max(0.0, until - time.monotonic())):
            self._processor.settle()
            self._processor.emitter.export_accounts(time.time_ns())
            self._sender.drain(_LAST_S)
        self.finish()

    def _queue_page(self) -> None:
        if is_page_due(self._state, self._processor):
            self.flush(time.time_ns())  # the page is created from the tables
            queue_page(
                self.run_folder, self._folder, self._state, self._processor,
                lambda: not journals_in(self._tail.folder),
            )  # fmt: skip

    def _pause(self, began: float) -> None:
        until = began + (self._look_s if self._tail.fullness < _BUSY else _BUSY_POLL_S)
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, GLANCE_S))
            if self._tail.is_pressing or self._is_flush_requested:
                break

    def tick(self) -> None:
        """Read sensors, then poll journals: a rank's last readings must precede the rank's end."""
        # Must run first: accessing a file that was truncated since the last poll is fatal (SIGBUS).
        with self._queue.lock:
            missing = self._tail.missing(self._state)
        self._put_and_process(missing)
        read = self._readings.step(self._tail.mains(), self._tail.stepping())
        with self._queue.lock:
            new = self._tail.find()
            self._queue.put([*read, *new])
            self._queue.look()
        self._catch_up()
        self._sums.publish(self._state)
        if any(not joined.meta.is_child for joined in new):
            self._readings.hasten()
        self._put_and_process(self._windows.step(self._state))
        self._put_and_process([*self._publisher.publish(read, self._state)])
        is_due = time.monotonic_ns() - self._marked_ns >= _MARK_NS
        if self._tail.ended_main or is_due or self._is_flush_requested or not len(self._tail):
            self.mark()

    def mark(self) -> None:
        """Log a mark and derive all data from the rows so far; flush if due."""
        until_ns = time.monotonic_ns(), time.time_ns()
        # Look for windows before reading rows, so that the rows include the windows' sections.
        window = self._windows.look(self._state)
        mark = self._queue.mark()
        self._marked_ns, unix = mark.monotonic_ns, mark.unix_ns
        flush = mark.last or window or self._tail.ended_main or self._is_flush_due(unix)
        self._catch_up()
        # Sync only at marks, not at each poll, because a sync costs milliseconds. It protects
        # against a crash of the machine; a killed agent loses nothing without it.
        self._queue.sync()
        self._processor.settle()
        if flush or self._is_memory_full:
            self._until_ns = until_ns
            self.flush(unix)

    def finish(self) -> None:
        """Stop all components and write the final state. Pending requests stay in the outbox."""
        self._publisher.close()
        self._stop()
        self._processor.settle()
        self.flush(time.time_ns())
        with contextlib.suppress(OSError, StoreError):  # optional: readers accept unmerged parts
            self._store.merge_all()
        self._close()

    def _stop(self) -> None:
        self._spiller.stop()
        self._windows.stop()
        self._readings.close()
        self._sender.stop()

    def _close(self) -> None:
        self._log.close()
        self._tail.close()

    def _put_and_process(self, events: Sequence[Event]) -> None:
        self._queue.put(events)
        self._catch_up()

    def _catch_up(self) -> None:
        """Process the events that are queued now, in order. Later events stay queued."""
        for events in self._queue.take_waiting():
            for event in events:
                self._processor.apply(event)
                if isinstance(event, Joined | Left):
                    _log.info("%s: %s", event.journal, type(event).__name__.lower())
            # Only write; do not report to the journals that rows are stored, because events of
            # those rows may still be queued.
            if self._is_memory_full and self._queue.is_behind:
                self._processor.settle()
                self._write(time.time_ns())

    @property
    def _is_flush_requested(self) -> bool:
        # Ignore a time in the future, which would be pending for ever.
        return self._until_ns[0] < self._tail.tables_requested_ns <= time.monotonic_ns()

    def _is_flush_due(self, unix_ns: int) -> bool:
        """Return whether a flush is due, because of a request or the interval.

        The interval is a sixth of the run's age, at least 2 s and at most 60 s.
        """
        age = unix_ns - (self._state.began_ns or unix_ns)
        interval = min(max(2 * 10**9, age // 6), 60 * 10**9)
        waited = unix_ns - self._state.flushed_ns
        return self._is_flush_requested or waited >= interval

    @property
    def _waiting_spans(self) -> int:
        return sum(map(len, self._processor.emitter.held.values()))

    @property
    def _is_memory_full(self) -> bool:
        spans = self._waiting_spans
        return spans > _MAX_SPANS or spans + self._rows.waiting > _MAX_ROWS

    def flush(self, unix_ns: int) -> None:
        """Write tables, state and accounts; report to the processes which rows are stored."""
        # Process all events that could not be logged, so that the written state contains them.
        while self._queue.is_refused and self._queue.is_behind:
            self._catch_up()
        # Not after an error, because journals and log are then the only copies.
        if self._write(unix_ns):
            with self._queue.lock:
                self._tail.stored(self._until_ns[0], self._state)
            self._windows.stored()

    def _write(self, unix_ns: int) -> bool:
        state = self._state
        try:
            # The order is essential. Parts first: after a crash here, the replay writes the same
            # part again. Then the state, with the log position up to which it contains events. Only
            # then may outcomes, segments and journals be removed: no replay needs them any more.
            if self._waiting_spans or self._rows.waiting:
                self._processor.emitter.flush(state.part)
                state.part += 1
            state.flushed_ns = unix_ns
            state.segment, state.logged = self._queue.cut()
            state.pending = self._outbox.pending
            state.finished = self._tail.still_there(state.finished)
            write_state(self._state_path, state)
            self._queue.contained()
            self._outbox.forget()
            self._log.drop_before(state.segment)
            self._windows.forget(state)
            # Must run after the state is written: a replay would write a merged part again.
            self._keep_small(state)
            report = self._processor.accounts.report(self._processor.emitter.waiting)
            write_report(self.run_folder, self._host, report)
            write_as_of(self.run_folder, self._host, self._until_ns[1])
        except (OSError, StoreError) as error:
            # Log text, not the exception, because the exception's frames reference mappings.
            _log.warning("writing the run folder failed: %s", str(error))
            return False
        return True

    def _keep_small(self, state: AgentState) -> None:
        if not state.part % _COMPACT_EVERY:
            self._store.compact()
        windows = [window_host(digest) for digest in state.windows.values() if digest]
        removed = self._store.trim(self._options.max_store_bytes, windows)
        self._processor.accounts.removed(account_of("spans", STORE), removed)
