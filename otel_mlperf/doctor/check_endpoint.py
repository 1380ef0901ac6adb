"""How far does a request come: name, connection, encryption, HTTP, OTLP?"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from otel_mlperf.findings.check import Check
from otel_mlperf.otlp.client import Client, Outcome
from otel_mlperf.otlp.endpoint_settings import grpc_hint, read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.otlp.endpoint_settings import Signal, SignalSettings

_PATIENCE_S: Final = 3.0
_SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics")


def check_endpoints(environ: Mapping[str, str]) -> tuple[list[Check], dict[str, SignalSettings]]:
    """Each signal's way to its server; and the settings of those that arrive."""
    checks: list[Check] = []
    reached: dict[str, SignalSettings] = {}
    tried: dict[str, list[Check]] = {}
    for signal in _SIGNALS:
        settings, warnings = read_settings(environ, signal)
        checks += [Check("warn", "settings", warning) for warning in warnings]
        if settings is None:
            checks.append(Check("ok", signal, "no endpoint is set: the run folder has it all"))
            continue
        url = urlsplit(settings.endpoint)
        server = f"{url.scheme}://{url.netloc}"
        # Both signals mostly go to one server: each stage is tried and told once.
        if server not in tried:
            tried[server] = check_connection(settings)
            checks += tried[server]
        if all(check.level != "FAIL" for check in tried[server]):
            checks.append(check_otlp(settings))
            if checks[-1].level != "FAIL":
                reached[signal] = settings
    return _once(checks), reached


def check_connection(settings: SignalSettings) -> list[Check]:
    """DNS, TCP and TLS; what comes after a failure is not tried."""
    url = urlsplit(settings.endpoint)
    host, secure = url.hostname or "", url.scheme == "https"
    port = url.port or (443 if secure else 80)
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        return [Check("FAIL", "dns", f"{host}: {error.strerror}", "check the endpoint's host name")]
    checks = [Check("ok", "dns", f"{host} is {address}")]
    try:
        with socket.create_connection((host, port), _PATIENCE_S) as connection:
            checks.append(Check("ok", "tcp", f"{host}:{port} answers"))
            if secure:
                checks.append(_check_tls(connection, host, settings))
    except OSError as error:
        found = f"{host}:{port}: {error.strerror or 'no answer'}"
        hint = _grpc_hint(settings) or "start the server, or correct the endpoint"
        checks.append(Check("FAIL", "tcp", found, hint))
    return checks


def _check_tls(connection: socket.socket, host: str, settings: SignalSettings) -> Check:
    try:
        context = ssl.create_default_context(cafile=settings.certificate)
        if settings.client_certificate:
            context.load_cert_chain(settings.client_certificate, settings.client_key)
        with context.wrap_socket(connection, server_hostname=host) as secured:
            return Check("ok", "tls", f"{secured.version()}, certificate valid for {host}")
    except ssl.SSLCertVerificationError as error:
        advice = "name its authority in OTEL_EXPORTER_OTLP_CERTIFICATE"
        return Check("FAIL", "tls", error.verify_message, advice)
    except OSError as error:
        advice = "does the server speak TLS? If not: http:// instead of https://"
        return Check("FAIL", "tls", error.strerror or str(error), advice)


def check_otlp(settings: SignalSettings) -> Check:
    """What the server says to an empty request."""
    # No bytes at all are a valid request without a span: nothing is stored anywhere by asking.
    client = Client(settings)
    answer = client.post(b"")
    client.close()
    what = f"otlp {settings.signal}"
    if answer.outcome is Outcome.DELIVERED:
        return Check("ok", what, f"{settings.endpoint} takes it")
    found, _, advice = answer.reason.partition(": check ")
    hint = _grpc_hint(settings)
    return Check("FAIL", what, found, hint or (f"check {advice}" if advice else "read its log"))


def _grpc_hint(settings: SignalSettings) -> str:
    url = urlsplit(settings.endpoint)
    return grpc_hint(f"{url.scheme}://{url.netloc}")


def _once(checks: list[Check]) -> list[Check]:
    return list(dict.fromkeys(checks))
