"""OTLP client over HTTP: sends a request and reports its outcome.

Only the server's answer decides about the outcome. Success is a 2xx status with an empty body or an
export response. Any answer that is no clear statement about *this* request leads to a retry.
"""

from __future__ import annotations

import gzip
import random
import time
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from typing import TYPE_CHECKING, Final, Protocol

from otel_mlperf import names
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.transport import WORDS_MOST, ErrorDescriber, Reply, Transport, retry_after

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.otlp.endpoint_settings import SignalSettings

_FIRST_S: Final = 1.0
_FACTOR: Final = 1.5
_MOST_S: Final = 5.0
_LEAST_SHARE: Final = 0.4


class Outcome(StrEnum):
    """Outcome of a request, which determines what the sender does next."""

    DELIVERED = "delivered"
    RETRY = "retry"
    """The request must be kept and sent again later."""
    REJECTED = "rejected"
    """The server cannot read an item of the request, which must be halved to isolate the item."""
    TOO_LARGE = "too_large"
    """The request must be halved."""
    UNAUTHORIZED = "unauthorized"
    """The request must be kept until the headers or the server are changed."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """Outcome of one request, with its reason."""

    outcome: Outcome
    reason: str = ""
    """Text for people: what was tried, what came back; free of secrets. For a delivery: its
    warning."""
    rejected: int = 0
    """Number of spans or points of a delivered request that the server did not accept."""
    after_s: float | None = None
    """The wait that the server requested, at most 60 s."""


_BY_STATUS: Final = {
    400: Outcome.REJECTED,
    401: Outcome.UNAUTHORIZED,
    403: Outcome.UNAUTHORIZED,
    413: Outcome.TOO_LARGE,
    422: Outcome.REJECTED,
}
_ADVICE: Final = {
    401: "check OTEL_EXPORTER_OTLP_HEADERS",
    403: "check OTEL_EXPORTER_OTLP_HEADERS",
    404: "check the path of the endpoint",
    405: "check the path of the endpoint",
}


class OtlpClient(Protocol):
    """Interface of a client that sends one signal's requests over some protocol, for one thread."""

    def post(self, body: bytes) -> ServerAnswer:
        """Send one encoded request and return its outcome; raises nothing."""

    def close(self) -> None:
        """Close the connection; the next request opens another."""


class Client:
    """Client that sends one signal's requests over HTTP, for one thread.

    The system's resolver looks up host names, outside the deadline.
    """

    def __init__(self, settings: SignalSettings, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now = now
        self._transport = Transport(settings)
        self._headers = settings.headers | {
            "content-type": "application/x-protobuf",
            "user-agent": names.USER_AGENT,
        }
        if settings.gzip:
            self._headers["content-encoding"] = "gzip"
        self._words = ErrorDescriber(settings)

    def post(self, body: bytes) -> ServerAnswer:
        """Send one encoded request and return its outcome; raise nothing."""
        # The fastest level, and no time stamp inside: a retry of the same request sends the same
        # bytes.
        if self._settings.gzip:
            body = gzip.compress(body, 1, mtime=0)
        try:
            reply = self._transport.post(body, self._headers)
        # It is not known whether the server has accepted it. A retry sends the same bytes, and
        # spans have the same ids: servers recognize them.
        except (OSError, HTTPException, ValueError) as error:
            why = self._words.why(error)
            return ServerAnswer(Outcome.RETRY, f"{self._settings.endpoint}: {why}")
        if 200 <= reply.status < 300:
            return self._accepted(reply)
        return self._refused(reply)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._transport.close()

    def _accepted(self, reply: Reply) -> ServerAnswer:
        try:
            if not reply.complete:
                raise ValueError("cut short")
            rejected, message = partial_success(reply.body)
        except ValueError:
            return ServerAnswer(
                Outcome.RETRY,
                f"{self._settings.endpoint} answered {reply.status}, but not with OTLP: check that "
                "this address is an OTLP/HTTP receiver",
            )
        return ServerAnswer(Outcome.DELIVERED, self._words.clean(message), rejected)

    def _refused(self, reply: Reply) -> ServerAnswer:
        advice = _ADVICE.get(reply.status, "")
        if 300 <= reply.status < 400:
            advice = "redirects are not followed; set the endpoint to the target of the redirect"
        words = self._words.clean(_error_message(reply))
        told = ": ".join(part for part in (advice, words) if part)
        return ServerAnswer(
            _BY_STATUS.get(reply.status, Outcome.RETRY),
            f"{self._settings.endpoint} answered {reply.status}" + (f": {told}" if told else ""),
            after_s=retry_after(reply.headers.get("retry-after"), self._now()),
        )


class Backoff:
    """Backoff of retries: waits that grow from one to five seconds, with random shortening.

    Each wait is randomly shortened to 40 % at least. The randomness keeps a thousand agents from
    returning to a restarted collector at one moment. The upper end keeps the first delivery within
    five seconds of its return. The wait that the server itself requests is a lower bound.
    """

    def __init__(self, chance: Callable[[], float] | None = None) -> None:
        # Never the shared generator: where the agent is a thread, that one belongs to the user's
        # program.
        self._chance = chance or random.Random().random
        self._failures = 0

    def failed(self, after_s: float | None = None) -> float:
        """Record a failure, after which the server requests ``after_s``.

        Return the seconds to wait.
        """
        most = min(_FIRST_S * _FACTOR ** min(self._failures, 16), _MOST_S)
        share = _LEAST_SHARE + (1 - _LEAST_SHARE) * self._chance()
        wait = most * share if after_s is None else after_s + most * (share - _LEAST_SHARE)
        self._failures += 1
        return wait

    def succeeded(self) -> None:
        """Record a success: the next failure starts at one second again."""
        self._failures = 0


def partial_success(body: bytes) -> tuple[int, str]:
    """Return rejected items and message of an export response; those of traces and metrics agree.

    Raises:
        ValueError: the body is not one.
    """
    rejected, message = 0, ""
    for field, kind, value in wire.fields(body):
        if field != 1:
            continue
        if kind != wire.BYTES:
            raise ValueError("partial_success is not a message")
        for inner, _, content in wire.fields(bytes(value)):
            if inner == 1 and isinstance(content, int):
                rejected = content if content < 1 << 63 else 0
            elif inner == 2 and isinstance(content, bytes):
                message = content.decode("utf-8", "replace")
    return rejected, message


def _error_message(reply: Reply) -> str:
    """Return the message of a refusal: a google.rpc.Status, or text."""
    if "protobuf" not in reply.headers.get("content-type", ""):
        return reply.body[: 2 * WORDS_MOST].decode("utf-8", "replace")
    try:
        words = [value for field, _, value in wire.fields(reply.body) if field == 2]
    except ValueError:
        return ""
    return b"".join(word for word in words if isinstance(word, bytes)).decode("utf-8", "replace")
