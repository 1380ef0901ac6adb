"""How do requests reach the server, and what if they do not?

One thread a signal, so that spans do not wait behind metrics. A request is tried until the server
has taken or refused it, for as long as the outbox has room. What a server refuses is halved until
the one span that it cannot read is alone; that one is counted as lost.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from otel_mlperf.otlp.client import Backoff, Client, Outcome, ServerAnswer
from otel_mlperf.otlp.split import post_in_parts

if TYPE_CHECKING:
    from otel_mlperf.agent.delivery.outbox import Outbox, WaitingRequest
    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.otlp.endpoint_settings import SignalSettings

_log = logging.getLogger("otel_mlperf.agent")
_LOG_EVERY_S: Final = 60.0
_LOCKED_OUT_S: Final = 30.0


class Sender:
    """Takes requests from the outbox and settles them."""

    def __init__(self, requests: Outbox, options: Options) -> None:
        self._requests = requests
        settings = [s for s in (options.traces, options.metrics) if s is not None]
        self._channels = [_Channel(requests, one) for one in settings]

    def start(self) -> None:
        """Starts a thread for each signal that has a destination."""
        for channel in self._channels:
            channel.start()

    def drain(self, most_s: float) -> bool:
        """Waits until nothing is left to send, ``most_s`` at most; whether that came."""
        until = time.monotonic() + most_s
        signals = [channel.signal for channel in self._channels]
        with self._requests.changed:
            while any(self._requests.has(signal) for signal in signals):
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._requests.changed.wait(left)
        return True

    def stop(self) -> None:
        """Ends the threads; a request under way is given up and stays in the outbox."""
        for channel in self._channels:
            channel.stopping.set()
        with self._requests.changed:
            self._requests.changed.notify_all()


class _Channel(threading.Thread):
    """One signal's way to its server."""

    def __init__(self, requests: Outbox, settings: SignalSettings) -> None:
        super().__init__(name=f"otel_mlperf {settings.signal}", daemon=True)
        self.signal = settings.signal
        self.stopping = threading.Event()
        self._requests = requests
        self._client = Client(settings)
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
            except Exception:  # noqa: BLE001 - one request must not end the way of all others
                _log.exception("%s: request %d cannot be sent", self.signal, request.number)
                self._requests.settle(request, 0, {"internal": request.items})
        self._client.close()

    def _next(self) -> WaitingRequest | None:
        with self._requests.changed:
            while not self._requests.has(self.signal):
                if self.stopping.is_set():
                    return None
                self._requests.changed.wait()
        return self._requests.next(self.signal)

    def _deliver(self, request: WaitingRequest) -> None:
        body = self._requests.body(request)
        if body is None:
            self._requests.settle(request, 0, {"outbox_io": request.items})
            return
        lost: dict[str, int] = {}
        answer = post_in_parts(self._post, body, self.signal, lost)
        if answer.outcome is Outcome.DELIVERED:
            missing = min(request.items, sum(lost.values()))
            self._requests.settle(request, request.items - missing, lost)
            self._recovered()
            return
        self._failed(answer)

    def _post(self, body: bytes) -> ServerAnswer:
        answer = self._client.post(body)
        if answer.rejected:
            self._say("the server took a request but refused %d of it: %s", answer)
        return answer

    def _failed(self, answer: ServerAnswer) -> None:
        self._failures += 1
        after_s = answer.after_s
        if answer.outcome is Outcome.UNAUTHORIZED:
            after_s = max(after_s or 0.0, _LOCKED_OUT_S)
        wait = self._backoff.failed(after_s)
        now = time.monotonic()
        if now - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now
            _log.warning(
                "%s: %s; kept, tried again (%d times so far)",
                self.signal, answer.reason, self._failures,
            )  # fmt: skip
        self.stopping.wait(wait)

    def _recovered(self) -> None:
        self._backoff.succeeded()
        if self._failures:
            _log.info("%s: delivered again after %d failures", self.signal, self._failures)
            self._failures = 0

    def _say(self, message: str, answer: ServerAnswer) -> None:
        now = time.monotonic()
        if now - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now
            _log.warning(message, answer.rejected, answer.reason)
