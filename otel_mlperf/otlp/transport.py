"""HTTP transport with a deadline per exchange and a size limit for answers, and error messages.

The transport is based on ``http.client``, which follows no redirects, reads neither netrc nor proxy
variables, and decompresses nothing. ``http.client`` has neither a deadline for a whole exchange nor
a limit for the size of answers. Both are enforced at the socket, so that they also apply to a
server that sends one byte per second.

Error messages are short, and contain no secrets of the configuration.
"""

from __future__ import annotations

import io
import re
import select
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import BadStatusLine, HTTPConnection
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from otel_mlperf.otlp.endpoint_settings import port_hint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.otlp.endpoint_settings import ServerSettings

MAX_MESSAGE_CHARS: Final = 200
_MAX_WAIT_S: Final = 60.0
_MIN_SECRET_LENGTH: Final = 4
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]+")


class ErrorDescriber:
    """Formatter of error messages about one server, which removes the configuration's secrets."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._secrets = _secrets(settings)

    def why(self, error: Exception) -> str:
        """Return a message for an exception of an exchange that yielded no complete answer."""
        match error:
            case TimeoutError():
                why = f"no complete answer within {self._settings.timeout_s:g} s"
            case ssl.SSLCertVerificationError():
                why = f"certificate refused: {error.verify_message}"
            case OSError():
                why = error.strerror or str(error) or type(error).__name__
            case BadStatusLine():
                why = "the answer is not HTTP/1.1"
            case _:
                why = type(error).__name__
        return self.clean(why + self.port_advice())

    def port_advice(self) -> str:
        """Return advice in brackets if the port is the other protocol's default, else ""."""
        hint = port_hint(self._settings.endpoint, is_grpc=self._settings.is_grpc)
        return f" ({hint})" if hint else ""

    def clean(self, words: str) -> str:
        """Return a server's text on one line, shortened, and without secrets of the settings."""
        # Longest first: replacing a part of a secret first would leave the remainder visible.
        for secret in self._secrets:
            words = words.replace(secret, "***")
        return _UNPRINTABLE.sub(" ", words)[:MAX_MESSAGE_CHARS].strip()


def retry_after(value: str | None, now: float) -> float | None:
    """Return the delay in seconds that a ``Retry-After`` header (number or HTTP date) requests.

    The result is from 0 to 60, or None if the header is missing or invalid. ``now`` is the Unix
    time in seconds.
    """
    if value is None:
        return None
    try:
        seconds = (
            int(value) if value.isdecimal() else parsedate_to_datetime(value).timestamp() - now
        )
    except (ValueError, OverflowError):
        return None
    return bounded_wait(seconds)


def bounded_wait(seconds: float) -> float:
    """Return the delay that a server requests, limited to the range from 0 to 60 seconds."""
    # Limited before the conversion: very large integers cannot be converted to float.
    return float(min(max(seconds, 0), _MAX_WAIT_S))


def _secrets(settings: ServerSettings) -> list[str]:
    """Return all secrets, longest first: header values, the URL's query, and parts of these."""
    values = [*settings.headers.values(), settings.query]
    parts = [part for value in values for part in (value, *value.split(), *value.split("="))]
    return sorted(
        {part for part in parts if len(part) >= _MIN_SECRET_LENGTH}, key=len, reverse=True
    )


MAX_ANSWER_BYTES: Final = 64 * 1024
"""Default maximum number of bytes that are read of an answer's body."""
_MAX_HEAD_BYTES: Final = 64 * 1024
_PIECE: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of a server: status, headers by lower-case name, and the body up to the size limit."""

    status: int
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    complete: bool


class Transport:
    """Transport of requests to one server over a persistent connection; not thread-safe.

    ``answer_most`` is the maximum number of bytes that are read of an answer's body.
    """

    def __init__(self, settings: ServerSettings, answer_most: int = MAX_ANSWER_BYTES) -> None:
        self._settings, self._answer_most = settings, answer_most
        url = urlsplit(settings.endpoint)
        self._host = url.hostname or ""
        self._secure = url.scheme == "https"
        self._port = url.port or (443 if self._secure else 80)
        self._target = url.path + (f"?{settings.query}" if settings.query else "")
        self._http: HTTPConnection | None = None
        self._socket: _BoundedSocket | None = None

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Send a POST request to the path of the settings' endpoint; raises as ``ask`` does."""
        return self.ask("POST", self._target, body, headers)

    def ask(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Send a request and return the reply; ``target`` is a path on the server with its query.

        Raises:
            OSError: an error of network or TLS, or the deadline has passed (``TimeoutError``).
            http.client.HTTPException: the answer is not HTTP.
            ValueError: the configuration contains values that cannot be sent.
        """
        deadline = time.monotonic() + self._settings.timeout_s
        try:
            reply = self._exchange(method, target, body, headers, deadline)
        # Close the connection after an incomplete exchange: otherwise the next request would read
        # the remainder of this answer as its own.
        except BaseException:
            self.close()
            raise
        if not reply.complete:
            self.close()
        return reply

    def _exchange(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str], deadline: float
    ) -> Reply:
        http = self._connection(deadline)
        # A server that stops reading a request may still have sent an answer, such as 413.
        with suppress(BrokenPipeError, ConnectionResetError):
            http.request(method, target, body or None, dict(headers))
        response = http.getresponse()
        # A single bounded read, since the announced length of the answer is not trusted.
        content = response.read(self._answer_most)
        complete = len(content) < self._answer_most and not response.length
        replied = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, replied, content, complete)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._http is not None:
            self._http.close()
        self._http = self._socket = None

    def _connection(self, deadline: float) -> HTTPConnection:
        if self._http and self._socket and self._http.sock and self._socket.quiet:
            self._socket.renew(deadline)
            return self._http
        self.close()
        raw = _connect(self._host, self._port, deadline)
        if self._secure:
            raw = self._encrypt(raw, deadline)
        self._socket = _BoundedSocket(raw, deadline, self._answer_most)
        self._http = HTTPConnection(self._host, self._port)
        self._http.sock = cast("socket.socket", self._socket)
        return self._http

    def _encrypt(self, raw: socket.socket, deadline: float) -> socket.socket:
        try:
            context = tls_context(self._settings)
            raw.settimeout(_remaining_s(deadline))
            return context.wrap_socket(raw, server_hostname=self._host)
        except BaseException:
            raw.close()
            raise


def tls_context(settings: ServerSettings) -> ssl.SSLContext:
    """Return a TLS context with the trusted authorities and the client's certificate.

    Raises:
        OSError: a file is missing or invalid.
    """
    context = ssl.create_default_context(cafile=settings.certificate)
    if not settings.is_verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if settings.client_certificate:
        # With an empty password, OpenSSL does not prompt for one on a terminal.
        context.load_cert_chain(settings.client_certificate, settings.client_key, "")
    return context


class _BoundedSocket:
    """Socket for ``http.client`` that enforces a deadline and a limit of received bytes."""

    def __init__(self, raw: socket.socket, deadline: float, answer_most: int) -> None:
        self._raw, self._answer_most = raw, answer_most
        self._readers = 0
        self._closed = False
        self.renew(deadline)

    @property
    def quiet(self) -> bool:
        """Return whether neither data nor the end of the stream is waiting to be read."""
        # Unsolicited data or the end means that the server has abandoned the connection: a request
        # over it would be lost.
        poll = select.poll()
        poll.register(self._raw, select.POLLIN)
        return not poll.poll(0)

    def renew(self, deadline: float) -> None:
        """Start a new exchange with its own ``deadline`` and limit of received bytes."""
        self._deadline = deadline
        self._readable = _MAX_HEAD_BYTES + self._answer_most

    def sendall(self, data: bytes) -> None:
        """Send all data in pieces, because the timeout of TLS sockets applies per call."""
        view = memoryview(data)
        while view:
            self._raw.settimeout(_remaining_s(self._deadline))
            view = view[self._raw.send(view[:_PIECE]) :]

    def recv_into(self, buffer: memoryview) -> int:
        # The limit counts all received bytes, including headers and chunk sizes, so that no framing
        # can bypass it.
        if not self._readable:
            raise OSError(f"the answer is longer than {self._answer_most // 1024} KiB")
        self._raw.settimeout(_remaining_s(self._deadline))
        count = self._raw.recv_into(buffer[: self._readable])
        self._readable -= count
        return count

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader for one answer. The reader is usable even after ``close``."""
        self._readers += 1
        return io.BufferedReader(_AnswerReader(self))

    def close(self) -> None:
        """Close the socket; if an answer is being read, only after the reader was closed."""
        self._closed = True
        self._close_unused()

    def reader_closed(self) -> None:
        self._readers -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        if self._closed and self._readers <= 0:
            self._raw.close()


class _AnswerReader(io.RawIOBase):
    def __init__(self, source: _BoundedSocket) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # any buffer is one
        return self._source.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._source.reader_closed()


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first responding address; each address has a share of the remaining time."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for place, (family, kind, protocol, _, address) in enumerate(addresses):
        raw = socket.socket(family, kind, protocol)
        try:
            raw.settimeout(_remaining_s(deadline) / (len(addresses) - place))
            raw.connect(address)
            # Head and body are written separately: without NODELAY, the second write would wait for
            # the acknowledgement of the first.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            raw.close()
            if place == len(addresses) - 1:
                raise
        else:
            return raw
    raise OSError("no address")


def _remaining_s(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining
