"""HTTP transport with a deadline for each exchange and bounds for answers; its failures described.

The standard library's ``http.client`` follows no redirect, reads no netrc and no proxy variable,
and unpacks nothing. It lacks a deadline for a whole exchange and a bound for answers. Both are
added beneath it, at the socket, where a server that sends one byte a second cannot pass.

Descriptions of failed exchanges are short, and contain none of our secrets.
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

WORDS_MOST: Final = 200
_WAIT_MOST_S: Final = 60.0
_SECRET_LEAST: Final = 4
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]+")


class ErrorDescriber:
    """Descriptions of exchanges with one server."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._secrets = _secrets(settings)

    def why(self, error: Exception) -> str:
        """Return why there was no answer."""
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
        """Return advice in brackets if the port is the usual one of the other protocol."""
        hint = port_hint(self._settings.endpoint, is_grpc=self._settings.is_grpc)
        return f" ({hint})" if hint else ""

    def clean(self, words: str) -> str:
        """Return a foreign text, short, on one line, and with none of our secrets echoed."""
        # Longest first, so that a part that is a secret too leaves no rest of the whole secret.
        for secret in self._secrets:
            words = words.replace(secret, "***")
        return _UNPRINTABLE.sub(" ", words)[:WORDS_MOST].strip()


def retry_after(value: str | None, now: float) -> float | None:
    """Return the seconds to wait, from a number of seconds or an HTTP date; at most a minute."""
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
    """Bound the seconds that a server requests to at most a minute."""
    # Bounded before the conversion: a float cannot have four hundred digits.
    return float(min(max(seconds, 0), _WAIT_MOST_S))


def _secrets(settings: ServerSettings) -> list[str]:
    """Return all secrets, longest first: header values, their parts, and the URL's query."""
    values = [*settings.headers.values(), settings.query]
    parts = [part for value in values for part in (value, *value.split(), *value.split("="))]
    return sorted({part for part in parts if len(part) >= _SECRET_LEAST}, key=len, reverse=True)


ANSWER_MOST: Final = 64 * 1024
"""Default maximum size of an answer's body that is read, in bytes."""
_HEAD_MOST: Final = 64 * 1024
_PIECE: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of a server: a status, headers by lower-case name, and the body up to the bound."""

    status: int
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    complete: bool


class Transport:
    """Transport of requests to one server over one persistent connection, for one thread."""

    def __init__(self, settings: ServerSettings, answer_most: int = ANSWER_MOST) -> None:
        self._settings, self._answer_most = settings, answer_most
        url = urlsplit(settings.endpoint)
        self._host = url.hostname or ""
        self._secure = url.scheme == "https"
        self._port = url.port or (443 if self._secure else 80)
        self._target = url.path + (f"?{settings.query}" if settings.query else "")
        self._http: HTTPConnection | None = None
        self._socket: _BoundedSocket | None = None

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Exchange one request with the endpoint itself; raises what ``ask`` does."""
        return self.ask("POST", self._target, body, headers)

    def ask(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Exchange one request; ``target`` is a path of the server, with its query.

        Raises:
            OSError: network, TLS and deadline (``TimeoutError``).
            http.client.HTTPException: the answer is not HTTP.
            ValueError: the configuration cannot be sent.
        """
        deadline = time.monotonic() + self._settings.timeout_s
        try:
            reply = self._exchange(method, target, body, headers, deadline)
        # An incomplete exchange leaves the rest of its answer in the connection. The next request
        # would read it as its own answer.
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
        # A server that does not read everything may still answer why: 413.
        with suppress(BrokenPipeError, ConnectionResetError):
            http.request(method, target, body or None, dict(headers))
        response = http.getresponse()
        # One bounded read: the length that the answer announces is not trusted.
        content = response.read(self._answer_most)
        complete = len(content) < self._answer_most and not response.length
        replied = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, replied, content, complete)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._http is not None:
            self._http.close()
        self._http = self._socket = None

    def _connection(self, deadline: float) -> HTTPConnection:
        """Return the open connection, or a new one if the server closed it or sent data unasked."""
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
            raw.settimeout(_left(deadline))
            return context.wrap_socket(raw, server_hostname=self._host)
        except BaseException:
            raw.close()
            raise


def tls_context(settings: ServerSettings) -> ssl.SSLContext:
    """Return a context with the authorities to trust and the certificate to present.

    Raises:
        OSError: a file is missing, or is not what it should be.
    """
    context = ssl.create_default_context(cafile=settings.certificate)
    if not settings.is_verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if settings.client_certificate:
        # The password keeps OpenSSL from asking a terminal for one.
        context.load_cert_chain(settings.client_certificate, settings.client_key, "")
    return context


class _BoundedSocket:
    """Socket for ``http.client`` whose calls all end at the deadline."""

    def __init__(self, raw: socket.socket, deadline: float, answer_most: int) -> None:
        self._raw, self._answer_most = raw, answer_most
        self._readers = 0
        self._closed = False
        self.renew(deadline)

    @property
    def quiet(self) -> bool:
        """Return whether nothing has arrived between requests, not even the end."""
        # Unsolicited bytes, or the end, mean that the server has given up the connection: a request
        # on it would be lost silently.
        poll = select.poll()
        poll.register(self._raw, select.POLLIN)
        return not poll.poll(0)

    def renew(self, deadline: float) -> None:
        """Start an exchange that ends at ``deadline``."""
        self._deadline = deadline
        self._readable = _HEAD_MOST + self._answer_most

    def sendall(self, data: bytes) -> None:
        """Send everything; piece by piece, since TLS sockets count their timeout per call."""
        view = memoryview(data)
        while view:
            self._raw.settimeout(_left(self._deadline))
            view = view[self._raw.send(view[:_PIECE]) :]

    def recv_into(self, buffer: memoryview) -> int:
        """Read available bytes, up to the bound of the exchange."""
        # The bound counts all arriving bytes, headers and chunk sizes included, so that no framing
        # bypasses it.
        if not self._readable:
            raise OSError(f"the answer is longer than {self._answer_most // 1024} KiB")
        self._raw.settimeout(_left(self._deadline))
        count = self._raw.recv_into(buffer[: self._readable])
        self._readable -= count
        return count

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the reader of one answer, which may outlive the connection that made it."""
        self._readers += 1
        return io.BufferedReader(_AnswerReader(self))

    def close(self) -> None:
        """Close as soon as no answer is being read."""
        self._closed = True
        self._close_unused()

    def reader_closed(self) -> None:
        """Release the reader of one answer."""
        self._readers -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        if self._closed and self._readers <= 0:
            self._raw.close()


class _AnswerReader(io.RawIOBase):
    """Reader of the bytes of one answer."""

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
    """Connect to the first address that answers; each gets its share of the time left."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for place, (family, kind, protocol, _, address) in enumerate(addresses):
        raw = socket.socket(family, kind, protocol)
        try:
            raw.settimeout(_left(deadline) / (len(addresses) - place))
            raw.connect(address)
            # Head and body are two writes: the second would wait for the acknowledgement of the
            # first.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            raw.close()
            if place == len(addresses) - 1:
                raise
        else:
            return raw
    raise OSError("no address")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
