"""OTLP client over gRPC: the requests and outcomes of ``Client``, sent by grpcio.

grpcio is a compiled library with threads of its own. The first request loads it. The recorder never
loads it, because only the agent and commands send requests.
"""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from otel_mlperf import names
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.client import Client, Outcome, ServerAnswer, partial_success
from otel_mlperf.otlp.transport import ANSWER_MOST, ErrorDescriber, bounded_wait, tls_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.otlp.client import OtlpClient
    from otel_mlperf.otlp.endpoint_settings import SignalSettings

_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", ANSWER_MOST),
    ("grpc.primary_user_agent", names.USER_AGENT),
    ("grpc.enable_http_proxy", 0),
)
_VERBOSITY: Final = "GRPC_VERBOSITY"
_BY_CODE: Final = {
    "INVALID_ARGUMENT": Outcome.REJECTED,
    "UNAUTHENTICATED": Outcome.UNAUTHORIZED,
    "PERMISSION_DENIED": Outcome.UNAUTHORIZED,
}
_BY_WORDS: Final = {
    # Overloaded servers use the same codes. grpcio writes ``CLIENT`` about an answer.
    "RESOURCE_EXHAUSTED": (
        re.compile("^(?!.*CLIENT:).*message.*(larger than max|exceeds (the )?max)", re.IGNORECASE),
        Outcome.TOO_LARGE,
    ),
    "OUT_OF_RANGE": (re.compile("message length too large"), Outcome.TOO_LARGE),
    # Messages of servers in Go, Python, Rust and Java about requests that they cannot parse.
    "INTERNAL": (
        re.compile(
            "error unmarshalling request|Exception deserializing request"
            "|failed to decode Protobuf message|Invalid protobuf byte sequence"
        ),
        Outcome.REJECTED,
    ),
}
_MISSING: Final = (
    "grpcio is not installed: pip install grpcio, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
)
_HEADERS: Final = "check OTEL_EXPORTER_OTLP_HEADERS"


class GrpcClient:
    """Client that sends one signal's requests over gRPC, for one thread."""

    def __init__(self, settings: SignalSettings) -> None:
        self._settings = settings
        self._words = ErrorDescriber(settings)
        self._channel: Any = None

    def post(self, body: bytes) -> ServerAnswer:
        """Send one encoded request and return its outcome; raise nothing."""
        try:
            grpc = _load()
        except ImportError:
            return self._failed(_MISSING)
        try:
            return self._accepted(self._export(grpc, body))
        except grpc.RpcError as error:
            return self._refused(error)
        # Raised for certificates that cannot be read, and headers that gRPC cannot send.
        except (OSError, ValueError, TypeError) as error:
            return self._failed(self._words.why(error))

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def _export(self, grpc: Any, body: bytes) -> bytes:
        settings = self._settings
        if self._channel is None:
            self._channel = _connect(grpc, settings)
        method = self._channel.unary_unary(_METHODS[settings.signal])
        answer: bytes = method(
            body,
            # For the whole exchange, from looking up the host.
            timeout=settings.timeout_s,
            metadata=tuple(settings.headers.items()),
            compression=getattr(grpc.Compression, "Gzip" if settings.gzip else "NoCompression"),
        )
        return answer

    def _accepted(self, answer: bytes) -> ServerAnswer:
        try:
            rejected, message = partial_success(answer)
        except ValueError:
            return self._failed(
                "the answer is not OTLP: check that this address is an OTLP/gRPC receiver"
            )
        return ServerAnswer(Outcome.DELIVERED, self._words.clean(message), rejected)

    def _refused(self, error: Any) -> ServerAnswer:
        code, details = error.code().name, error.details() or ""
        outcome = _outcome(code, details)
        told = ": ".join(filter(None, [self._advice(code), self._words.clean(details)]))
        if outcome is not Outcome.RETRY:
            return ServerAnswer(outcome, f"{self._settings.endpoint}: {code}: {told}")
        return self._failed(f"{code}: {told}", _retry_delay_s(error))

    def _advice(self, code: str) -> str:
        if _BY_CODE.get(code) is Outcome.UNAUTHORIZED:
            return _HEADERS
        if code == "UNIMPLEMENTED":
            return f"check that the server accepts {self._settings.signal} over gRPC"
        return ""

    def _failed(self, why: str, after_s: float | None = None) -> ServerAnswer:
        """Return a retry over a new connection.

        An old connection waits ever longer before it tries.
        """
        self.close()
        reason = f"{self._settings.endpoint}: {why}{self._words.port_advice()}"
        return ServerAnswer(Outcome.RETRY, reason, after_s=after_s)


def _load() -> Any:
    """Import grpcio, without its own reports on stderr.

    Raises:
        ImportError: it is not installed.
    """
    given = os.environ.get(_VERBOSITY)
    os.environ.setdefault(_VERBOSITY, "NONE")
    try:
        import grpc
    finally:
        # Read once, by the import. Child processes of this process set their own.
        if given is None:
            os.environ.pop(_VERBOSITY, None)
    return grpc


def _connect(grpc: Any, settings: SignalSettings) -> Any:
    url = urlsplit(settings.endpoint)
    # With the scheme, so that no host name is mistaken for a scheme: ``dns``, ``unix``, ``xds``.
    target = f"dns:///{url.netloc}"
    if url.scheme != "https":
        return grpc.insecure_channel(target, _OPTIONS)
    return grpc.secure_channel(target, _credentials(grpc, settings), _OPTIONS)


def _credentials(grpc: Any, settings: SignalSettings) -> Any:
    # Checked first by ``ssl``, which reports what is wrong with a file; grpcio does not.
    tls_context(settings)
    certificate = settings.client_certificate
    # grpcio aborts the process where a certificate comes without a key.
    key = certificate and (settings.client_key or certificate)
    # grpcio has authorities of its own, which lack those that this system trusts.
    trusted = settings.certificate or ssl.get_default_verify_paths().cafile
    return grpc.ssl_channel_credentials(_content(trusted), _content(key), _content(certificate))


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _outcome(code: str, details: str) -> Outcome:
    words, outcome = _BY_WORDS.get(code, (None, Outcome.RETRY))
    if words is not None and words.search(details):
        return outcome
    return _BY_CODE.get(code, Outcome.RETRY)


def _retry_delay_s(error: Any) -> float | None:
    """Return the wait that a server requests by a ``google.rpc.RetryInfo``, at most a minute."""
    try:
        for key, status in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                return _delay_of(status)
    except ValueError:
        pass
    return None


def _delay_of(status: bytes) -> float | None:
    for detail in _messages(status, 3):
        if b"".join(_messages(detail, 1)).endswith(b"google.rpc.RetryInfo"):
            info = b"".join(_messages(detail, 2))
            duration = b"".join(_messages(info, 1))
            parts = {field: part for field, _, part in wire.fields(duration)}
            seconds, nanos = parts.get(1, 0), parts.get(2, 0)
            if isinstance(seconds, int) and isinstance(nanos, int):
                return bounded_wait(seconds + nanos / 1e9)
    return None


def _messages(data: bytes, wanted: int) -> Iterator[bytes]:
    for field, _, value in wire.fields(data):
        if field == wanted and isinstance(value, bytes):
            yield value


def open_client(settings: SignalSettings) -> OtlpClient:
    """Make a client of a server; it connects with its first request."""
    return GrpcClient(settings) if settings.is_grpc else Client(settings)
