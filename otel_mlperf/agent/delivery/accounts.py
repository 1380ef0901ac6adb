"""Delivery accounts: the outcome of every item, by signal and destination.

The identity ``created = delivered + rolled_up + unselected + lost{reason} + pending`` is always
true. Span items are published section rows, sections dropped by a full ring, sections that were
open when the process died, and events of profiler windows. Metric items are the collected points.
``pending`` is counted from the items that wait; it is not computed as a difference.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.agent.delivery.destination import UNSELECTED, account_of
from otel_mlperf.agent.derivation.metric_series import Meter
from otel_mlperf.agent.model.agent_state import ItemAccount
from otel_mlperf.whole_file import make_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_mlperf.agent.delivery.destination import Destination, Signal
    from otel_mlperf.agent.delivery.request_files import SettledRequest
    from otel_mlperf.agent.derivation.journal_rows import SpanCounts
    from otel_mlperf.agent.model.agent_state import AgentState
    from otel_mlperf.agent.model.events import WindowConverted


class Accounts:
    """Delivery accounts of a run on this node: one for each signal of each destination."""

    def __init__(self, state: AgentState, destinations: Sequence[Destination]) -> None:
        self._state, self._destinations = state, destinations
        for destination in destinations:
            for signal in destination.signals:
                state.accounts.setdefault(account_of(signal, destination.name), ItemAccount())
        self._meter = Meter(state)

    def takers(self, signal: Signal) -> list[Destination]:
        """Return the destinations that accept ``signal``."""
        return [taker for taker in self._destinations if signal in taker.signals]

    def _of(self, signal: Signal) -> list[ItemAccount]:
        takers = self.takers(signal)
        return [self._state.accounts[account_of(signal, taker.name)] for taker in takers]

    def measured(self, counts: SpanCounts, dropped: int) -> None:
        """Count a journal's span items of one mark, and ``dropped`` items lost to a full ring."""
        for account in self._of("spans"):
            account.created += counts.created + dropped
            account.unselected += counts.unselected
            account.rolled_up += counts.rolled_up
            _lose(account, "ring_full", dropped)
            _lose(account, "internal", counts.failed)
            _lose(account, "damaged", counts.damaged)

    def converted(self, event: WindowConverted) -> None:
        """Count the events of a profiler window: converted, or lost for reason ``event.lost``."""
        outcome = {names.OUTCOME: "lost" if event.lost else "delivered"}
        self._meter.add(names.CONVERSIONS, outcome, 1)
        for taker, account in zip(self.takers("spans"), self._of("spans"), strict=True):
            account.created += event.events
            if event.lost:
                _lose(account, event.lost, event.events)
            elif taker.buffered_in_wal:
                # The process that converted the window has already written the events to the
                # tables.
                account.delivered += event.events
            elif taker.form == "otlp":
                account.rolled_up += event.rolled_up
                # Requests do not contain spans of traces that the sampler did not select.
                sent = sum(items for items, _ in event.requests)
                account.unselected += event.events - event.rolled_up - sent
            else:
                # The spans exist only as encoded OTLP requests, which this destination cannot read.
                account.unselected += event.events

    def lost(self, account: str, reason: str, count: int) -> None:
        """Count ``count`` items as lost for ``reason``."""
        _lose(self._state.accounts[account], reason, count)

    def unselected(self, account: str, count: int, rolled_up: int) -> None:
        """Count items as unselected, because the sampler did not select their trace.

        ``count`` items had no outcome yet; ``rolled_up`` items were counted as rolled up before.
        """
        of = self._state.accounts[account]
        of.unselected += count + rolled_up
        of.rolled_up -= rolled_up

    def delivered(self, account: str, count: int) -> None:
        """Count ``count`` items as delivered."""
        self._state.accounts[account].delivered += count

    def removed(self, account: str, spans: int) -> None:
        """Count delivered spans as lost, because they were removed to make room for newer spans."""
        self.delivered(account, -spans)
        self.lost(account, "store_full", spans)

    def collected(self, signal: Signal, items: int) -> None:
        """Count ``items`` created for each destination that accepts ``signal``."""
        for account in self._of(signal):
            account.created += items

    def made(self, account: str, points: int) -> None:
        """Count created metric points of one destination."""
        self._state.accounts[account].created += points

    def settled(self, outcome: SettledRequest) -> None:
        """Count the items of a request as delivered, unselected or lost."""
        account = self._state.accounts.setdefault(outcome.account, ItemAccount())
        account.delivered += outcome.delivered
        lost = dict(outcome.lost)
        account.unselected += lost.pop(UNSELECTED, 0)
        for reason, count in lost.items():
            _lose(account, reason, count)

    def report(self, waiting: dict[str, int]) -> dict[str, dict[str, Any]]:
        """Return the terms of the accounting identity by signal, destination and name of the term.

        ``waiting`` is the number of items that wait in outbox or memory, by account.
        """
        pending = self._pending(waiting)
        report: dict[str, dict[str, Any]] = {}
        for name, account in self._state.accounts.items():
            signal, destination = name.split("/")
            report.setdefault(signal, {})[destination] = {
                "created": account.created,
                "delivered": account.delivered,
                "rolled_up": account.rolled_up,
                "unselected": account.unselected,
                "pending": pending[name],
                "lost": dict(account.lost),
            }
        return report

    def _pending(self, waiting: dict[str, int]) -> dict[str, int]:
        # Waiting rows are already counted as created, but their outcome is unknown until their step
        # ends.
        waiting_rows = sum(j.waiting_rows for j in self._state.journals.values())
        return {
            name: waiting.get(name, 0) + (waiting_rows if name.startswith("spans/") else 0)
            for name in self._state.accounts
        }

    def publish(self, waiting: dict[str, int]) -> None:
        """Set the metric series of the accounts. ``waiting`` is as in ``report``."""
        pending = self._pending(waiting)
        for name, account in self._state.accounts.items():
            signal, destination = name.split("/")
            labels = {names.SIGNAL: signal, names.DESTINATION: destination}
            self._meter.set(names.ITEMS_CREATED.name, labels, account.created)
            self._meter.set(names.ITEMS_PENDING.name, labels, pending[name])
            for outcome in ("delivered", "rolled_up", "unselected"):
                counted = labels | {names.OUTCOME: outcome}
                self._meter.set(names.ITEMS.name, counted, getattr(account, outcome))
            for reason, count in account.lost.items():
                lost = labels | {names.OUTCOME: "lost", names.ERROR_TYPE: reason}
                self._meter.set(names.ITEMS.name, lost, count)


def _lose(account: ItemAccount, reason: str, count: int) -> None:
    if count:
        account.lost[reason] = account.lost.get(reason, 0) + count


def write_report(folder: Path, host: str, report: dict[str, dict[str, Any]]) -> None:
    """Replace ``accounting/<host>.json`` in a run folder."""
    place = folder / "accounting"
    make_folder(place)
    write_whole(place / f"{host}.json", json.dumps(report, indent=1).encode())
