"""What became of every item, by signal and destination?

``created = delivered + rolled_up + unselected + lost{reason} + pending``, always. Span items are
published section rows, drops of the full ring, sections open at a death, and events of profiler
windows; metric items are the points collected. ``pending`` is what is known to wait, not the
difference of the rest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.agent.derivation.metric_series import Meter
from otel_mlperf.agent.model.agent_state import ItemAccount
from otel_mlperf.journal.layout import ROW_BYTES
from otel_mlperf.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_mlperf.agent.delivery.outbox import SettledRequest
    from otel_mlperf.agent.derivation.mark_work import MarkOutcome
    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.model.agent_state import AgentState
    from otel_mlperf.agent.model.events import WindowConverted
    from otel_mlperf.agent.model.kept_span import Kept

SPANS_STORE: Final = "spans/store"
SPANS_OTLP: Final = "spans/otlp"
METRICS_OTLP: Final = "metrics/otlp"
_BY_SIGNAL: Final = {"traces": SPANS_OTLP, "metrics": METRICS_OTLP}


class Accounts:
    """The accounts of this node's run."""

    def __init__(self, state: AgentState, options: Options) -> None:
        self._state = state
        self.destinations = [SPANS_STORE]
        self.destinations += [SPANS_OTLP] if options.traces else []
        self.destinations += [METRICS_OTLP] if options.metrics else []
        for destination in self.destinations:
            state.accounts.setdefault(destination, ItemAccount())
        self._unstored = 0
        self._meter = Meter(state)

    def measured(self, outcome: MarkOutcome, dropped: int) -> None:
        """What one mark brought of one journal; ``dropped`` by its full ring."""
        for destination in (SPANS_STORE, SPANS_OTLP):
            if destination in self.destinations:
                account = self._state.accounts[destination]
                account.created += outcome.created + dropped
                account.unselected += outcome.unselected
                account.rolled_up += outcome.rolled_up
                _lose(account, "ring_full", dropped)
                _lose(account, "internal", outcome.failed)

    def converted(self, event: WindowConverted) -> None:
        """A profiler window: its events are in the store, or lost for a reason."""
        outcome = {names.OUTCOME: "lost" if event.lost else "delivered"}
        self._meter.add(names.CONVERSIONS, outcome, 1)
        for destination in (SPANS_STORE, SPANS_OTLP):
            if destination in self.destinations:
                account = self._state.accounts[destination]
                account.created += event.events
                _lose(account, event.lost, event.events if event.lost else 0)
        if not event.lost:
            self._state.accounts[SPANS_STORE].delivered += event.events
            if SPANS_OTLP in self.destinations:
                self._state.accounts[SPANS_OTLP].rolled_up += event.rolled_up

    def lost(self, destination: str, reason: str, count: int) -> None:
        """Items that will not arrive."""
        _lose(self._state.accounts[destination], reason, count)

    def stored_later(self, spans: Sequence[Kept]) -> None:
        """Spans that the next flush writes."""
        self._unstored += sum(kept.kind == "section" for kept in spans)

    def stored(self) -> None:
        """The flush has written them."""
        self._state.accounts[SPANS_STORE].delivered += self._unstored
        self._unstored = 0

    def removed(self, spans: int) -> None:
        """Stored spans that had to make room for newer ones."""
        account = self._state.accounts[SPANS_STORE]
        account.delivered -= spans
        _lose(account, "store_full", spans)

    def collected(self, points: int) -> None:
        """Metric points made."""
        self._state.accounts[METRICS_OTLP].created += points

    def settled(self, outcome: SettledRequest) -> None:
        """A server's answer to a request."""
        account = self._state.accounts.setdefault(_BY_SIGNAL[outcome.signal], ItemAccount())
        account.delivered += outcome.delivered
        for reason, count in outcome.lost.items():
            _lose(account, reason, count)

    def report(self, waiting: dict[str, int]) -> dict[str, dict[str, Any]]:
        """Signal to destination to the terms of the identity; ``waiting`` items by signal."""
        pending = self._pending(waiting)
        found: dict[str, dict[str, Any]] = {}
        for name in self._state.accounts:
            signal, destination = name.split("/")
            account = self._state.accounts[name]
            found.setdefault(signal, {})[destination] = {
                "created": account.created,
                "delivered": account.delivered,
                "rolled_up": account.rolled_up,
                "unselected": account.unselected,
                "pending": pending[name],
                "lost": dict(account.lost),
            }
        return found

    def _pending(self, waiting: dict[str, int]) -> dict[str, int]:
        held = sum(len(j.held) // ROW_BYTES for j in self._state.journals.values())
        return {
            SPANS_STORE: held + self._unstored,
            SPANS_OTLP: held + waiting.get("traces", 0),
            METRICS_OTLP: waiting.get("metrics", 0),
        }

    def tell(self, waiting: dict[str, int]) -> None:
        """Sets the accounts' series to what is so now; ``waiting`` items by signal."""
        pending = self._pending(waiting)
        for name, account in self._state.accounts.items():
            signal, destination = name.split("/")
            labels = {names.SIGNAL: signal, names.DESTINATION: destination}
            self._meter.set(names.ITEMS_CREATED.name, labels, account.created)
            self._meter.set(names.ITEMS_PENDING.name, labels, pending[name])
            for outcome in ("delivered", "rolled_up", "unselected"):
                known = labels | {names.OUTCOME: outcome}
                self._meter.set(names.ITEMS.name, known, getattr(account, outcome))
            for reason, count in account.lost.items():
                lost = labels | {names.OUTCOME: "lost", names.ERROR_TYPE: reason}
                self._meter.set(names.ITEMS.name, lost, count)


def _lose(account: ItemAccount, reason: str, count: int) -> None:
    if count:
        account.lost[reason] = account.lost.get(reason, 0) + count


def write_report(folder: Path, host: str, report: dict[str, dict[str, Any]]) -> None:
    """Replaces ``accounting/<host>.json`` of a run folder."""
    place = folder / "accounting"
    place.mkdir(exist_ok=True)
    write_whole(place / f"{host}.json", json.dumps(report, indent=1).encode())
