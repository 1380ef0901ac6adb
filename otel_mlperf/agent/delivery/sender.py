"""Sender threads, which offer batches of the outbox to destinations, with retries.

Each signal of each destination has its own thread, so that a slow server delays neither another
server nor another signal. A batch is offered until the destination accepts or refuses the batch, or
the outbox drops the batch for lack of room. The sender thread sleeps between retries.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.delivery.batches import decode_batch
from otel_mlperf.agent.delivery.destination import Delivered, Refused, TryLater, account_of
from otel_mlperf.otlp.http_client import Backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.agent.delivery.destination import Destination, Signal
    from otel_mlperf.agent.delivery.outbox import Outbox
    from otel_mlperf.agent.delivery.request_files import WaitingRequest

_log = logging.getLogger("otel_mlperf.agent")
_LOG_EVERY_S: Final = 60.0
_LABEL: Final = re.compile("[a-z][a-z0-9_]{0,39}")


class Sender:
    """Set of sender threads, one for each signal of each destination."""

    def __init__(self, outbox: Outbox, destinations: Sequence[Destination]) -> None:
        self._outbox = outbox
        self._channels = [
            _Channel(outbox, destination, signal)
            for destination in destinations
            if not destination.buffered_in_wal
            for signal in destination.signals
        ]

    @property
    def accounts(self) -> list[str]:
        """Return the names of the accounts that have a sender thread."""
        return [channel.account for channel in self._channels]

    def start(self) -> None:
        """Start all sender threads."""
        for channel in self._channels:
            channel.start()

    def drain(self, most_s: float) -> bool:
        """Wait at most ``most_s`` seconds until the outbox is empty; return whether it is."""
        until = time.monotonic() + most_s
        with self._outbox.changed:
            while any(map(self._outbox.has, self.accounts)):
                remaining_s = until - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._outbox.changed.wait(remaining_s)
        return True

    def stop(self) -> None:
        """Signal the threads to end, without waiting. Batches being sent stay in the outbox."""
        for channel in self._channels:
            channel.stopping.set()
        with self._outbox.changed:
            self._outbox.changed.notify_all()


class _Channel(threading.Thread):
    def __init__(self, outbox: Outbox, destination: Destination, signal: Signal) -> None:
        self.account = account_of(signal, destination.name)
        super().__init__(name=f"otel_mlperf {self.account}", daemon=True)
        self.stopping = threading.Event()
        self._outbox, self._destination, self._signal = outbox, destination, signal
        self._backoff = Backoff()
        self._logged_s = -_LOG_EVERY_S
        self._failures = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            request = self._next()
            if request is None:
                continue
            try:
                self._deliver(request)
            except Exception:  # noqa: BLE001 - one batch must not end the way of all others
                _log.exception(
                    "%s: batch %d cannot be delivered and is dropped", self.account, request.number
                )
                self._outbox.settle(request, 0, {"internal": request.items})
        try:
            self._destination.close(self._signal)
        except Exception:  # noqa: BLE001 - somebody else's code
            _log.exception("%s: closing the destination failed", self.account)

    def _next(self) -> WaitingRequest | None:
        with self._outbox.changed:
            while not self._outbox.has(self.account):
                if self.stopping.is_set():
                    return None
                self._outbox.changed.wait()
        return self._outbox.next(self.account)

    def _deliver(self, request: WaitingRequest) -> None:
        body = self._outbox.body(request)
        if body is None:
            self._outbox.settle(request, 0, {"outbox_io": request.items})
            return
        # Decode again for each try: otherwise a batch that waits for hours would stay in memory.
        batch = decode_batch(self._destination.form, self._signal, request, body)
        match self._destination.accept(batch):
            case Delivered(lost):
                # Limit losses to the items of the batch: otherwise the accounting identity would
                # break.
                missing = min(request.items, sum(lost.values()))
                self._outbox.settle(request, request.items - missing, _bounded(lost, missing))
                self._recovered()
            case Refused(reason):
                self._warn("%s: a batch was rejected and is dropped: %s", reason)
                self._outbox.settle(request, 0, {_label(reason): request.items})
            case TryLater(reason, after_s):
                self._failures += 1
                self._warn(
                    f"%s: %s; the batch is kept and retried ({self._failures} failures so far)",
                    reason,
                )
                # Retry the same batch first: servers refuse metrics that are older than the last
                # accepted ones.
                self.stopping.wait(self._backoff.failed(after_s))
            case other:
                raise TypeError(f"found {other!r}, expected Delivered, Refused or TryLater")

    def _recovered(self) -> None:
        self._backoff.succeeded()
        if self._failures:
            _log.info("%s: delivery works again after %d failures", self.account, self._failures)
            self._failures = 0

    def _warn(self, message: str, reason: str) -> None:
        now = time.monotonic()
        if now - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now
            _log.warning(message, self.account, reason)


def _bounded(lost: dict[str, int], limit: int) -> dict[str, int]:
    bounded: dict[str, int] = {}
    for reason, count in lost.items():
        count = min(count, limit - sum(bounded.values()))  # noqa: PLW2901 - what is left of it
        if count > 0:
            bounded[_label(reason)] = bounded.get(_label(reason), 0) + count
    return bounded


def _label(reason: str) -> str:
    return reason if _LABEL.fullmatch(reason) else "refused"
