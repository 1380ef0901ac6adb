"""OTLP client over HTTP, and the outcomes of requests.

The outcome depends only on the server's answer. Success is a 2xx status with a body that is empty
or an export response. A request is sent again if the answer might belong to another request.
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
from otel_mlperf.otlp.transport import (
    MAX_MESSAGE_CHARS,
    ErrorDescriber,
    Reply,
    Transport,
    retry_after,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.otlp.endpoint_settings import SignalSettings

_FIRST_S: Final = 1.0
_FACTOR: Final = 1.5
_MAX_S: Final = 5.0
_MIN_SHARE: Final = 0.4


class Outcome(StrEnum):
    """Outcome of a request, which determines the sender's next action."""

    DELIVERED = "delivered"
    RETRY = "retry"
    """The request must be stored, and sent again later."""
    REJECTED = "rejected"
    """The server cannot read an item: halve the request to isolate this item."""
    TOO_LARGE = "too_large"
    """The request exceeds a limit of the server, and must be halved."""
    UNAUTHORIZED = "unauthorized"
    """The request must be stored until the user changes the headers or the server."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """Outcome of one request, with its reason."""

    outcome: Outcome
    reason: str = ""
    """Message for users without secrets: endpoint and answer. For a delivered request, it is the
    server's warning or empty."""
    rejected: int = 0
    """Number of spans or points in a delivered request that the server did not accept."""
    after_s: float | None = None
    """Seconds to wait before a retry as requested by the server, at most 60; None if not
    requested."""


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
    """Client for the requests of one OTLP signal, over HTTP or gRPC; not thread-safe."""

    def post(self, body: bytes) -> ServerAnswer:
        """Send one encoded request and return its outcome; never raises."""

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""


class Client:
    """Client for the requests of one OTLP signal over HTTP; not thread-safe.

    The timeout does not limit the lookup of host names by the system's resolver.
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
        self._describer = ErrorDescriber(settings)

    def post(self, body: bytes) -> ServerAnswer:
        """Send one encoded request and return its outcome; never raises."""
        # Fastest level, and without a time stamp, so that a retry sends exactly the same bytes.
        if self._settings.gzip:
            body = gzip.compress(body, 1, mtime=0)
        try:
            reply = self._transport.post(body, self._headers)
        # It is unknown whether the server has accepted the request. A retry is safe: servers
        # recognize repeated spans by their ids.
        except (OSError, HTTPException, ValueError) as error:
            why = self._describer.why(error)
            return ServerAnswer(Outcome.RETRY, f"{self._settings.endpoint}: {why}")
        if 200 <= reply.status < 300:
            return self._accepted(reply)
        return self._refused(reply)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
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
        return ServerAnswer(Outcome.DELIVERED, self._describer.clean(message), rejected)

    def _refused(self, reply: Reply) -> ServerAnswer:
        advice = _ADVICE.get(reply.status, "")
        if 300 <= reply.status < 400:
            advice = "redirects are not followed; set the endpoint to the target of the redirect"
        message = self._describer.clean(_error_message(reply))
        detail = ": ".join(part for part in (advice, message) if part)
        return ServerAnswer(
            _BY_STATUS.get(reply.status, Outcome.RETRY),
            f"{self._settings.endpoint} answered {reply.status}"
            + (f": {detail}" if detail else ""),
            after_s=retry_after(reply.headers.get("retry-after"), self._now()),
        )


class Backoff:
    """Delays between retries, which grow from one to five seconds, with jitter.

    Each delay is shortened at random, to at least 40 % of its length, so that many agents do not
    contact a restarted collector at the same moment. The maximum ensures that the first delivery
    follows within five seconds of the restart. A delay requested by the server is a lower bound.
    """

    def __init__(self, chance: Callable[[], float] | None = None) -> None:
        # A generator of its own: if the agent is a thread, the shared one belongs to the user's
        # program.
        self._chance = chance or random.Random().random
        self._failures = 0

    def failed(self, after_s: float | None = None) -> float:
        """Record a failure, and return the seconds to wait before the next attempt.

        ``after_s`` is the delay in seconds that the server requested, None if the server requested
        no delay.
        """
        max_wait = min(_FIRST_S * _FACTOR ** min(self._failures, 16), _MAX_S)
        share = _MIN_SHARE + (1 - _MIN_SHARE) * self._chance()
        wait = max_wait * share if after_s is None else after_s + max_wait * (share - _MIN_SHARE)
        self._failures += 1
        return wait

    def succeeded(self) -> None:
        """Record a success, so that the next failure is followed by the shortest delay again."""
        self._failures = 0


def partial_success(body: bytes) -> tuple[int, str]:
    """Return the number of rejected items and the message of an encoded export response.

    Responses for traces and metrics have the same fields.

    Raises:
        ValueError: the body is not an export response.
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
    if "protobuf" not in reply.headers.get("content-type", ""):
        return reply.body[: 2 * MAX_MESSAGE_CHARS].decode("utf-8", "replace")
    try:
        words = [value for field, _, value in wire.fields(reply.body) if field == 2]
    except ValueError:
        return ""
    return b"".join(word for word in words if isinstance(word, bytes)).decode("utf-8", "replace")
