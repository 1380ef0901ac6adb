"""Outbox: persistent queue of requests on disk, with the outcome of each request.

Each request is one file in ``requests/``, numbered in the order of creation. Requests survive
crashes and server outages. ``outcomes.log`` records the outcome of each request, so that a replayed
request with a known outcome is not sent again. The total size of the files is limited. Above the
limit, the oldest requests of the destination with the most bytes are dropped and counted as lost.
"""

from __future__ import annotations

import logging
import threading
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.delivery.request_files import (
    SUFFIX,
    SettledRequest,
    WaitingRequest,
    file_name,
    outcome_line,
    parse_outcome,
    request_in,
)
from otel_mlperf.whole_file import make_folder, open_private, read_regular, write_whole

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("otel_mlperf.agent")
_LOG: Final = "outcomes.log"
_MAX_LOG_BYTES: Final = 256 << 20


class Outbox:
    """Persistent queue of requests: the agent's loop adds requests, sender threads remove them."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self._waiting: dict[int, WaitingRequest] = {}
        self._settled: dict[int, SettledRequest] = {}
        self._news: list[SettledRequest] = []
        self._made: dict[int, WaitingRequest] = {}
        """Requests that a previous agent created after its last state, and has possibly sent."""
        make_folder(folder)

    def load(self, next_number: int, pending: list[int]) -> None:
        """Load the requests of a previous agent.

        Args:
            next_number: first unused request number in the previous agent's last state. The replay
                adds requests from this number upward again.
            pending: numbers of the requests without an outcome in that state.
        """
        # Read outcomes first: a crash after writing an outcome, but before removing the request's
        # file, leaves both. The outcome is then correct.
        self._settled = {outcome.number: outcome for outcome in self._read_log()}
        # Outcomes of requests that were pending in the last state are not in its accounts; all
        # other outcomes in the log are.
        self._news = [o for o in self._settled.values() if o.number in pending]
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            request = request_in(path)
            if request is None:
                _log.warning("%s is not a stored request: the file is skipped", path)
                continue
            known = self._settled.get(request.number)
            if known and known.check == request.check:
                _remove(path)
                continue
            # A request created after the last state waits until the replay adds it again. If it
            # were sent immediately, the replay would queue the same number twice.
            where = self._waiting if request.number < next_number else self._made
            where[request.number] = request

    def add(self, number: int, account: str, items: int, body: bytes) -> SettledRequest | None:
        """Queue a request and return None, or return its outcome if that is already known.

        If a previous agent stored the request, the stored file is sent unchanged: in a replay, the
        values of the agent's health metrics can differ, and servers refuse requests with two values
        for one time. If the request cannot be stored, its items are counted as lost.
        """
        check = zlib.crc32(body)
        # Only a replay finds a known outcome or file, because each number is used once.
        known, made = self._settled.get(number), self._made.pop(number, None)
        request = WaitingRequest(number, account, items, check, len(body))
        is_known = known and (known.check == check or _is_same(known, account, items))
        if made is not None and (is_known or made[:3] != request[:3] or self.body(made) is None):
            _remove(self._path(made))
            made = None
        if is_known:
            return known
        with self.changed:
            if made is not None:
                self._waiting[number] = made
                self.changed.notify_all()
                return None
            if not self._make_room(len(body)):
                self._settle(SettledRequest(number, account, check, 0, {"outbox_full": items}))
                return None
            try:
                # Durable, because this is the only copy after the next state is written and the
                # event log removed.
                write_whole(self._path(request), body, is_durable=True)
            except OSError:
                self._settle(SettledRequest(number, account, check, 0, {"outbox_io": items}))
                return None
            self._waiting[number] = request
            self.changed.notify_all()
        return None

    def body(self, request: WaitingRequest) -> bytes | None:
        """Return the stored body of a request; None if its file is missing or damaged."""
        try:
            body = read_regular(self._path(request))
        except OSError:
            return None
        return body if zlib.crc32(body) == request.check else None

    def next(self, account: str) -> WaitingRequest | None:
        """Return the oldest waiting request of ``account``; None if no request waits."""
        with self._lock:
            return next((r for r in self._waiting.values() if r.account == account), None)

    def has(self, account: str) -> bool:
        """Return whether a request of ``account`` waits. The caller must hold ``changed``."""
        return any(r.account == account for r in self._waiting.values())

    def requests_of(self, accounts: list[str]) -> int:
        """Return the number of waiting requests of all ``accounts``."""
        with self._lock:
            return sum(r.account in accounts for r in self._waiting.values())

    def settle(self, request: WaitingRequest, delivered: int, lost: dict[str, int]) -> None:
        """Record a request's outcome (``lost``: items by reason) and remove its file."""
        with self.changed:
            # The request was dropped for lack of room while it was being sent: its loss is already
            # counted, and each item has only one outcome.
            if self._waiting.pop(request.number, None) is None:
                return
            number, account, _, check, _ = request
            outcome = SettledRequest(number, account, check, delivered, lost)
            self._settle(outcome)
            _remove(self._path(request))
            self.changed.notify_all()

    def news(self) -> list[SettledRequest]:
        """Return the outcomes that were recorded since the last call."""
        with self._lock:
            news, self._news = self._news, []
        return news

    @property
    def pending(self) -> list[int]:
        """Return the numbers of the requests whose outcome ``news`` has not returned yet."""
        with self._lock:
            return sorted([*self._waiting, *(o.number for o in self._news)])

    @property
    def waiting(self) -> dict[str, int]:
        """Return the number of items by account, counted over the requests in ``pending``."""
        with self._lock:
            items: dict[str, int] = {}
            for request in self._waiting.values():
                items[request.account] = items.get(request.account, 0) + request.items
            for outcome in self._news:
                settled = outcome.delivered + sum(outcome.lost.values())
                items[outcome.account] = items.get(outcome.account, 0) + settled
            return items

    def forget(self) -> None:
        """Remove outcomes that ``news`` has returned, and old requests that no replay has added.

        Must be called after a state that contains these outcomes was written.
        """
        with self._lock:
            # Remove requests that the replay has not added: with other options or another version,
            # it derives other requests.
            while self._made:
                _remove(self._path(self._made.popitem()[1]))
            self._settled = {outcome.number: outcome for outcome in self._news}
            lines = "".join(map(outcome_line, self._settled.values()))
            write_whole(self._folder / _LOG, lines.encode())

    def _settle(self, outcome: SettledRequest) -> None:
        self._settled[outcome.number] = outcome
        self._news.append(outcome)
        # If the line cannot be written, the request is at worst sent twice, after a crash.
        with suppress(OSError), open(self._folder / _LOG, "a", opener=open_private) as log:
            log.write(outcome_line(outcome))

    def _make_room(self, size: int) -> bool:
        # Requests that the replay has not added yet occupy room too, but must not be dropped: they
        # may have been sent.
        room = self._limit - size - sum(request.size for request in self._made.values())
        if room < 0:
            return False
        while self._waiting and sum(r.size for r in self._waiting.values()) > room:
            oldest = self._waiting.pop(self._oldest_of_largest())
            _remove(self._path(oldest))
            lost = {"outbox_full": oldest.items}
            self._settle(SettledRequest(oldest.number, oldest.account, oldest.check, 0, lost))
        return True

    def _oldest_of_largest(self) -> int:
        size_of: dict[str, int] = {}
        for request in self._waiting.values():
            size_of[request.destination] = size_of.get(request.destination, 0) + request.size
        largest = max(size_of, key=size_of.__getitem__)
        return next(r.number for r in self._waiting.values() if r.destination == largest)

    def _path(self, request: WaitingRequest) -> Path:
        return self._folder / file_name(request)

    def _read_log(self) -> list[SettledRequest]:
        path = self._folder / _LOG
        try:
            lines = read_regular(path, _MAX_LOG_BYTES).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:  # not a regular file of the agent
            _log.warning("%s: %s; the file is ignored", path, error)
            return []
        parsed = [parse_outcome(line) for line in lines if line]
        # Requests whose outcome cannot be read are sent again, if their files still exist.
        if damaged := parsed.count(None):
            _log.warning("%s: %d damaged lines are ignored", path, damaged)
        return [outcome for outcome in parsed if outcome]


def _is_same(known: SettledRequest, account: str, items: int) -> bool:
    settled = known.delivered + sum(known.lost.values())
    return account == known.account and account.startswith("metrics/") and settled == items


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
