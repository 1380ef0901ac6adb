"""Main loop of the agent: intervals of reading, derivation and flushing.

The agent reads the journals twice a second and makes the rows durable. It reads sooner when a
glance shows that a journal fills up or has ended. Every second it processes the rows, while a
thread goes on making room in the journals. The tables are flushed at growing intervals. When the
last journal has ended, the agent delivers what waits, for a limited time, and ends.
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
from otel_mlperf.agent.lifecycle.ended_run import is_page_due, queue_page
from otel_mlperf.agent.lifecycle.node_parts import load_or_begin, make_node_parts
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
"""Share of a ring found new by one look, from which upward the next look comes sooner."""
_BUSY_POLL_S: Final = 0.01
_MARK_NS: Final = 10**9
_LAST_S: Final = 2.0
"""Time limit for the last request, once everything else is delivered."""
_COMPACT_EVERY: Final = 8
"""Number of parts after which compaction is checked."""
_MOST_WAITING: Final = 50_000
"""Number of waiting rows that triggers a flush at any time, because they are in memory."""
_MOST_SPANS: Final = 2_500
"""Number of waiting spans that triggers a flush; spans need some ten times as much memory."""


def look_interval_s(readings_s: float) -> float:
    """Return the time between two looks: half a second, or the readings' interval down to 0.1 s."""
    return min(LOOK_S, max(GLANCE_S, readings_s))


class Agent:
    """Agent of one run on one node."""

    def __init__(
        self, folder: Path, tail: Tail, options: Options, machine: SensorSet | None = None
    ) -> None:
        """Continue with state and log in ``folder``, the node's existing folder in a run folder.

        ``machine`` has the sensors to read (default: those of this machine that ``options``
        select).
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
        # Everything that had ended by then is to be in the tables: by the monotonic clock, and as
        # Unix time.
        self._until_ns = 0, 0
        self._replay()

    def _replay(self) -> None:
        count = 0
        # Events go to the processor alone, not to the log again: they are in it until a state
        # contains them.
        for event in self._log.replay():
            self._processor.apply(event)
            count += 1
        if count:
            _log.info("continued the work of an earlier agent: %d events replayed", count)
        # After the replay: only its end determines up to which row journals were read.
        self._tail.resume(self._state)
        self._take(self._tail.missing(self._state))
        # Last: while the replay runs, a request may still turn out to have been settled.
        self._sender.start()

    def run(
        self,
        is_mine: Callable[[], bool] = lambda: True,
        quieten: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Run until the last journal has ended and waiting items are delivered, or time is over.

        ``is_mine`` returns whether no other agent serves the journals. Once another one does, this
        agent ends. ``quieten`` is called once with the native id of the thread that makes room in
        them, before any derivation.
        """
        self._spiller.start()
        quieten(self._spiller.native_id or 0)
        while True:
            began = time.monotonic()
            if not is_mine():
                _log.warning("another agent serves the journals now: this agent ends")
                self._stop()
                self._let_go()
                return
            with self._spiller.at_work():
                self.tick()
            if not len(self._tail) and not self._state.journals:
                break
            self._pause(began)
        until = time.monotonic() + self._options.drain_timeout_s
        while self._windows.waiting and time.monotonic() < until:
            self._take([*self._windows.step(self._state)])
            time.sleep(GLANCE_S)
        self._queue_page()
        # The last accounts can report that all was delivered only after all was. They are a request
        # themselves, hence once more.
        if self._sender.drain(max(0.0, until - time.monotonic())):
            self._processor.settle()
            self._processor.emitter.export_accounts(time.time_ns())
            self._sender.drain(_LAST_S)
        self.finish()

    def _queue_page(self) -> None:
        """Queue the page of the run, unless a process of it starts meanwhile.

        In that case the run is not over.
        """
        if is_page_due(self._state, self._processor):
            self.flush(time.time_ns())  # the page shows what is in the tables
            queue_page(
                self.run_folder, self._folder, self._state, self._processor,
                lambda: not journals_in(self._tail.folder),
            )  # fmt: skip

    def _pause(self, began: float) -> None:
        """Wait until the next look is due, or until a glance shows that it should come sooner."""
        until = began + (self._look_s if self._tail.fullness < _BUSY else _BUSY_POLL_S)
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, GLANCE_S))
            if self._tail.is_pressing or self._is_asked:
                break

    def tick(self) -> None:
        """Read sensors and journals once: a rank's last readings come before its end."""
        # First: a file that was truncated since the last look must not be accessed any more.
        with self._queue.lock:
            missing = self._tail.missing(self._state)
        self._take(missing)
        read = self._readings.step(self._tail.mains(), self._tail.stepping())
        with self._queue.lock:
            new = self._tail.find()
            self._queue.put([*read, *new])
            self._queue.look()
        self._catch_up()
        self._sums.publish(self._state)
        if any(not joined.meta.is_child for joined in new):
            self._readings.hasten()
        self._take(self._windows.step(self._state))
        self._take([*self._publisher.publish(read, self._state)])
        is_due = time.monotonic_ns() - self._marked_ns >= _MARK_NS
        if self._tail.ended_main or is_due or self._is_asked or not len(self._tail):
            self.mark()

    def mark(self) -> None:
        """Derive from everything that has come."""
        until_ns = time.monotonic_ns(), time.time_ns()
        window = self._windows.look(self._state)  # before the rows, so that its sections are read
        mark = self._queue.mark()
        self._marked_ns, unix = mark.monotonic_ns, mark.unix_ns
        flush = mark.last or window or self._tail.ended_main or self._is_flush_due(unix)
        self._catch_up()
        # Once a mark, not once a look: it costs milliseconds on a disk. It protects only against a
        # machine that stops; a killed agent loses nothing without it.
        self._queue.sync()
        self._processor.settle()
        if flush or self._is_much:
            self._until_ns = until_ns
            self.flush(unix)

    def finish(self) -> None:
        """Write the state a last time; what still waits stays in the outbox."""
        self._publisher.close()
        self._stop()
        self._processor.settle()
        self.flush(time.time_ns())
        with contextlib.suppress(OSError, StoreError):  # readers see everything in any case
            self._store.merge_all()
        self._let_go()

    def _stop(self) -> None:
        self._spiller.stop()
        self._windows.stop()
        self._readings.close()
        self._sender.stop()

    def _let_go(self) -> None:
        self._log.close()
        self._tail.close()

    def _take(self, events: Sequence[Event]) -> None:
        self._queue.put(events)
        self._catch_up()

    def _catch_up(self) -> None:
        """Process the events that wait by now, in order; later ones are left to the next call."""
        for events in self._queue.take_waiting():
            for event in events:
                self._processor.apply(event)
                if isinstance(event, Joined | Left):
                    _log.info("%s: %s", event.journal, type(event).__name__.lower())
            # Journals are notified only when nothing waits: the events that they wait for may be
            # queued.
            if self._is_much and self._queue.is_behind:
                self._processor.settle()
                self._write(time.time_ns())

    @property
    def _is_asked(self) -> bool:
        """Return whether the tables were requested since they were written, or could not be."""
        # A time in the future is no valid request: it would be pending for ever.
        return self._until_ns[0] < self._tail.tables_asked_ns <= time.monotonic_ns()

    def _is_flush_due(self, unix_ns: int) -> bool:
        """Return whether a flush is due: on request, at first every 2 s, later less often.

        The interval is a sixth of the run's age, between 2 and 60 s.
        """
        age = unix_ns - (self._state.began_ns or unix_ns)
        interval = min(max(2 * 10**9, age // 6), 60 * 10**9)
        waited = unix_ns - self._state.flushed_ns
        return self._is_asked or waited >= interval

    @property
    def _waiting_spans(self) -> int:
        return sum(map(len, self._processor.emitter.held.values()))

    @property
    def _is_much(self) -> bool:
        """Return whether so much waits for the tables that memory requires a flush."""
        spans = self._waiting_spans
        return spans > _MOST_SPANS or spans + self._rows.waiting > _MOST_WAITING

    def flush(self, unix_ns: int) -> None:
        """Write tables, state and accounts; everything read until here is then stored."""
        # Events that are in no log must be in the state: all of them are processed, therefore.
        while self._queue.is_refused and self._queue.is_behind:
            self._catch_up()
        # Not after an error: the journals are then the only copy besides the log.
        if self._write(unix_ns):
            with self._queue.lock:
                self._tail.stored(self._until_ns[0], self._state)
            self._windows.stored()

    def _write(self, unix_ns: int) -> bool:
        """Write tables, state and accounts; return False if the disk refused."""
        state = self._state
        try:
            # The order is essential. Parts first: a crash here replays the log and writes the same
            # part again. Then the state, which names the first segment that it does not contain.
            # Only then may outcomes, segments and journals be removed, because no replay needs them
            # any more.
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
            # After the state: a replay would write a part again that was merged into another.
            self._keep_small(state)
            report = self._processor.accounts.report(self._processor.emitter.waiting)
            write_report(self.run_folder, self._host, report)
            write_as_of(self.run_folder, self._host, self._until_ns[1])
        except (OSError, StoreError) as error:
            # As text: the frames of the error reference mappings.
            _log.warning("writing the run folder failed: %s", str(error))
            return False
        return True

    def _keep_small(self, state: AgentState) -> None:
        """Merge small parts at intervals, and remove the oldest rows over the limit."""
        if not state.part % _COMPACT_EVERY:
            self._store.compact()
        windows = [window_host(digest) for digest in state.windows.values() if digest]
        gone = self._store.trim(self._options.max_store_bytes, windows)
        self._processor.accounts.removed(account_of("spans", STORE), gone)
