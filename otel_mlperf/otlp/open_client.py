"""Factory of the client of a signal, by the protocol that its settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.otlp.client import Client
from otel_mlperf.otlp.grpc_client import GrpcClient

if TYPE_CHECKING:
    from otel_mlperf.otlp.client import OtlpClient
    from otel_mlperf.otlp.endpoint_settings import SignalSettings


def open_client(settings: SignalSettings) -> OtlpClient:
    """Make a client of a server; it connects with its first request."""
    return GrpcClient(settings) if settings.is_grpc else Client(settings)
