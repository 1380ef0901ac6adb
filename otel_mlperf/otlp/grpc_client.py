"""OTLP client over gRPC, with the same requests and outcomes as ``Client``, based on grpcio.

grpcio is a compiled library that starts threads. It is imported at the first request, and never in
a training process, because only the agent and commands send requests.
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
from otel_mlperf.otlp.http_client import Client, Outcome, ServerAnswer, partial_success
from otel_mlperf.otlp.transport import MAX_ANSWER_BYTES, ErrorDescriber, bounded_wait, tls_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.otlp.endpoint_settings import SignalSettings
    from otel_mlperf.otlp.http_client import OtlpClient

_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.primary_user_agent", names.USER_AGENT),
    ("grpc.enable_http_proxy", 0),
)
_VERBOSITY: Final = "GRPC_VERBOSITY"
_BY_CODE: Final = {
    "INVALID_ARGUMENT": Outcome.REJECTED,
    "UNAUTHENTICATED": Outcome.UNAUTHORIZED,
    "PERMISSION_DENIED": Outcome.UNAUTHORIZED,
}
_BY_MESSAGE: Final = {
    # Overloaded servers use the same codes, so the message is checked as well. ``CLIENT`` in a
    # message means that grpcio itself refused an answer.
    "RESOURCE_EXHAUSTED": (
        re.compile("^(?!.*CLIENT:).*message.*(larger than max|exceeds (the )?max)", re.IGNORECASE),
        Outcome.TOO_LARGE,
    ),
    "OUT_OF_RANGE": (re.compile("message length too large"), Outcome.TOO_LARGE),
    # Messages of servers in Go, Python, Rust and Java for requests that cannot be parsed.
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
    """Client for the requests of one OTLP signal over gRPC; not thread-safe."""

    def __init__(self, settings: SignalSettings) -> None:
        self._settings = settings
        self._describer = ErrorDescriber(settings)
        self._channel: Any = None

    def post(self, body: bytes) -> ServerAnswer:
        """Send one encoded request and return its outcome; never raises."""
        try:
            grpc = _load()
        except ImportError:
            return self._failed(_MISSING)
        try:
            return self._accepted(self._export(grpc, body))
        except grpc.RpcError as error:
            return self._refused(error)
        # Raised for unreadable certificates, and for headers that gRPC cannot send.
        except (OSError, ValueError, TypeError) as error:
            return self._failed(self._describer.why(error))

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
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
            # Applies to the whole exchange, starting with the host lookup.
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
        return ServerAnswer(Outcome.DELIVERED, self._describer.clean(message), rejected)

    def _refused(self, error: Any) -> ServerAnswer:
        code, details = error.code().name, error.details() or ""
        outcome = _outcome(code, details)
        detail = ": ".join(filter(None, [self._advice(code), self._describer.clean(details)]))
        if outcome is not Outcome.RETRY:
            return ServerAnswer(outcome, f"{self._settings.endpoint}: {code}: {detail}")
        return self._failed(f"{code}: {detail}", _retry_delay_s(error))

    def _advice(self, code: str) -> str:
        if _BY_CODE.get(code) is Outcome.UNAUTHORIZED:
            return _HEADERS
        if code == "UNIMPLEMENTED":
            return f"check that the server accepts {self._settings.signal} over gRPC"
        return ""

    def _failed(self, why: str, after_s: float | None = None) -> ServerAnswer:
        """Return the outcome RETRY, and close the connection.

        With an open connection, gRPC would wait longer after each failure before it reconnects.
        """
        self.close()
        reason = f"{self._settings.endpoint}: {why}{self._describer.port_advice()}"
        return ServerAnswer(Outcome.RETRY, reason, after_s=after_s)


def _load() -> Any:
    """Import grpcio with its own logging on stderr disabled.

    Raises:
        ImportError: grpcio is not installed.
    """
    given = os.environ.get(_VERBOSITY)
    os.environ.setdefault(_VERBOSITY, "NONE")
    try:
        import grpc
    finally:
        # The variable is only read during the import. It must not be inherited by child processes.
        if given is None:
            os.environ.pop(_VERBOSITY, None)
    return grpc


def _connect(grpc: Any, settings: SignalSettings) -> Any:
    url = urlsplit(settings.endpoint)
    # With a scheme: otherwise a host named dns, unix or xds would be interpreted as a scheme.
    target = f"dns:///{url.netloc}"
    if url.scheme != "https":
        return grpc.insecure_channel(target, _OPTIONS)
    return grpc.secure_channel(target, _credentials(grpc, settings), _OPTIONS)


def _credentials(grpc: Any, settings: SignalSettings) -> Any:
    # Load the files with ssl first, which reports invalid files; grpcio does not.
    tls_context(settings)
    certificate = settings.client_certificate
    # Always pass a key with a certificate: otherwise grpcio aborts the process.
    key = certificate and (settings.client_key or certificate)
    # grpcio's built-in authorities do not include those that only this system trusts.
    trusted = settings.certificate or ssl.get_default_verify_paths().cafile
    return grpc.ssl_channel_credentials(_content(trusted), _content(key), _content(certificate))


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _outcome(code: str, details: str) -> Outcome:
    pattern, outcome = _BY_MESSAGE.get(code, (None, Outcome.RETRY))
    if pattern is not None and pattern.search(details):
        return outcome
    return _BY_CODE.get(code, Outcome.RETRY)


def _retry_delay_s(error: Any) -> float | None:
    """Return the delay in seconds that a server requests by ``google.rpc.RetryInfo``, at most 60.

    None if the server requests no delay.
    """
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
    """Return an HTTP or gRPC client for a server. The client connects at the first request."""
    return GrpcClient(settings) if settings.is_grpc else Client(settings)
