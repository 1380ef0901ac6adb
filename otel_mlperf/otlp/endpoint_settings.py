"""Endpoint settings of an OTLP signal from the standard OTEL_EXPORTER_OTLP_* variables.

A signal's own variable (``OTEL_EXPORTER_OTLP_TRACES_TIMEOUT``) overrides the general variable. As
required by the specification, an invalid value is not an error: a warning names the variable, and
the default applies. Warnings and ``repr`` never contain the values of headers, or the login or
query of a URL.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, get_args
from urllib.parse import SplitResult, unquote, urlsplit

from otel_mlperf.settings.declared_config import declare

if TYPE_CHECKING:
    from collections.abc import Mapping

Signal = Literal["traces", "metrics"]
Temporality = Literal["cumulative", "delta", "lowmemory"]

EXPORTER_GROUPS: Final[dict[Signal, str]] = {
    "traces": "opentelemetry_traces_exporter",
    "metrics": "opentelemetry_metrics_exporter",
}
"""Entry point groups by which other packages provide exporters of the OpenTelemetry SDK."""
_TIMEOUT_S: Final = 10.0
_MIN_TIMEOUT_MS: Final = 100
_GRPC: Final = "grpc"
_HTTP: Final = "http/protobuf"
_PORTS: Final = {_GRPC: 4317, _HTTP: 4318}
_LOCAL: Final = {protocol: f"http://localhost:{port}" for protocol, port in _PORTS.items()}
_AGGREGATION: Final = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_TEMPORALITY: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
_EXEMPLARS: Final = "OTEL_METRICS_EXEMPLAR_FILTER"
_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_FRAMING: Final = frozenset({
    "connection", "content-encoding", "content-length", "content-type", "expect", "host",
    "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers on the framing or encoding of a request, which only the client may set."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of the connection to one OTLP server."""

    endpoint: str
    """URL without login and query, so that it can be shown to users."""
    query: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = _TIMEOUT_S
    """Timeout of a whole request, from connecting to the last byte of the answer."""
    certificate: str | None = None
    """File with trusted certificate authorities; None for the authorities of the system."""
    client_certificate: str | None = None
    client_key: str | None = None
    is_verified: bool = True
    """Whether the server's certificate is verified."""
    is_grpc: bool = False
    """Whether to use gRPC instead of HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSettings(ServerSettings):
    """Settings of the delivery of one OTLP signal; ``endpoint`` includes the signal's path."""

    signal: Signal
    gzip: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSettings:
    """Settings of metrics in the standard variables, except server settings."""

    explicit_buckets: bool = False
    """Whether histograms have explicit instead of exponential buckets."""
    temporality: Temporality = "cumulative"
    exemplars: bool = True
    """Whether histograms have exemplars, which refer to spans that were sent."""
    interval_s: float | None = None
    """Export interval of metrics in seconds; None if the variable is not set."""


def read_settings(
    environ: Mapping[str, str], signal: Signal, endpoint: str | None = None
) -> tuple[SignalSettings | None, list[str]]:
    """Return the settings of an OTLP signal (None if the signal is not sent), and warnings.

    Args:
        environ: The environment variables.
        signal: The signal, whose own variables override the general variables.
        endpoint: Value of ``OTEL_EXPORTER_OTLP_ENDPOINT`` that replaces all endpoint variables;
            None to use the variables.
    """
    environ, warnings = declare(environ)
    reader = _SettingReader(environ, signal)
    reader.warnings += warnings
    url = reader.url(endpoint)
    if url is None:
        return None, reader.warnings
    settings = SignalSettings(
        signal=signal,
        endpoint=_shown(url),
        query=url.query,
        headers=reader.headers(url),
        timeout_s=reader.timeout_s(),
        gzip=reader.gzip(),
        certificate=reader.file("CERTIFICATE"),
        client_certificate=reader.file("CLIENT_CERTIFICATE"),
        client_key=reader.file("CLIENT_KEY", private=True),
        is_grpc=reader.is_grpc,
    )
    return settings, reader.warnings


def read_exporters(environ: Mapping[str, str], signal: Signal) -> list[str]:
    """Return the exporters in a signal's OTEL_*_EXPORTER variable, except ``otlp`` and ``none``."""
    listed = _listed(declare(environ)[0], signal)
    return [name for name in listed if name.lower() not in ("otlp", "none")]


def read_metric_settings(environ: Mapping[str, str]) -> tuple[MetricSettings, list[str]]:
    """Return the settings of metrics from the standard variables, and the warnings."""
    environ, warnings = declare(environ)
    values = {name: environ.get(name, "").strip() for name in (_AGGREGATION, _TEMPORALITY)}
    kind = values[_AGGREGATION].lower()
    if kind not in ("", "explicit_bucket_histogram", "base2_exponential_bucket_histogram"):
        warnings.append(f"{_AGGREGATION}={kind} is unknown: exponential histograms are used")
    # Declarative configuration files write "low_memory" with an underscore.
    wanted = values[_TEMPORALITY].lower().replace("low_memory", "lowmemory") or "cumulative"
    known: dict[str, Temporality] = {kind: kind for kind in get_args(Temporality)}
    temporality = known.get(wanted, "cumulative")
    if wanted not in known:
        warnings.append(f"{_TEMPORALITY}={wanted} is unknown: cumulative metrics are used")
    exemplars = environ.get(_EXEMPLARS, "").strip().lower()
    if exemplars not in ("", "trace_based", "always_off"):
        warnings.append(f"{_EXEMPLARS}={exemplars} is not supported: trace_based is used")
    explicit = kind == "explicit_bucket_histogram"
    interval_ms = _positive(environ.get(_INTERVAL, ""))
    if interval_ms is None and environ.get(_INTERVAL, "").strip():
        warnings.append(
            f"{_INTERVAL}={environ[_INTERVAL]} is not a number of milliseconds and is ignored"
        )
    interval_s = None if interval_ms is None else interval_ms / 1000
    settings = MetricSettings(
        explicit_buckets=explicit,
        temporality=temporality,
        exemplars=exemplars != "always_off",
        interval_s=interval_s,
    )
    return settings, warnings


def basic_login(name: str, password: str) -> str:
    """Return the value of the ``Authorization`` header for basic authentication."""
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def is_in_the_clear(url: SplitResult) -> bool:
    """Return whether requests to a URL are unencrypted and leave this machine."""
    return url.scheme != "https" and not _is_loopback(url.hostname or "")


def port_hint(endpoint: str, *, is_grpc: bool) -> str:
    """Return advice if an endpoint has the default port of the other protocol, else ""."""
    chosen, other = (_GRPC, _HTTP) if is_grpc else (_HTTP, _GRPC)
    url = urlsplit(endpoint)
    if url.port != _PORTS[other]:
        return ""
    moved = _shown(_at_port(url, _PORTS[chosen]))
    return (
        f"port {url.port} uses {other}, but the protocol is {chosen}: use {moved} "
        f"or OTEL_EXPORTER_OTLP_PROTOCOL={other}"
    )


class _SettingReader:
    """Reader of the environment variables of one OTLP signal, which collects warnings."""

    def __init__(self, environ: Mapping[str, str], signal: Signal) -> None:
        self._environ = environ
        self._signal = signal
        self.warnings: list[str] = []
        self.is_grpc = False

    def _find(self, name: str) -> tuple[str, str]:
        """Return name and value of the set variable; if none is set, the general name and ""."""
        general = f"OTEL_EXPORTER_OTLP_{name}"
        own = f"OTEL_EXPORTER_OTLP_{self._signal.upper()}_{name}"
        for variable in (own, general):
            value = self._environ.get(variable, "").strip()
            if value:
                return variable, value
        return general, ""

    def url(self, endpoint: str | None) -> SplitResult | None:
        """Return the signal's URL with login and query; None if the signal is not sent."""
        exporter = self._exporter()
        variable, value = self._find("ENDPOINT")
        if endpoint is not None:
            variable, value = "endpoint", endpoint
        if exporter == "none" or not (value or exporter):
            return None
        self.is_grpc = self._uses_grpc()
        local = _LOCAL[_GRPC if self.is_grpc else _HTTP]
        url = _split(self._with_scheme(value or local))
        if url is None:
            # Remove a login and a query, which even an invalid URL may contain.
            harmless = value.rpartition("@")[2].partition("?")[0]
            self.warnings.append(
                f"{variable}={harmless} is not a URL like {local}: {self._signal} are not sent"
            )
            return None
        if hint := port_hint(url.geturl(), is_grpc=self.is_grpc):
            self.warnings.append(f"{variable}: {hint}")
        return _server(url) if self.is_grpc else self._with_path(variable, url)

    def _with_path(self, variable: str, url: SplitResult) -> SplitResult:
        """Return the signal's URL for HTTP; only a general URL gets the signal's path appended."""
        if variable.endswith(f"{self._signal.upper()}_ENDPOINT"):
            return url._replace(path=url.path or "/")
        return url._replace(path=f"{url.path.rstrip('/')}/v1/{self._signal}")

    def _exporter(self) -> str:
        """Return ``otlp`` or ``none`` as in the signal's exporter variable; "" if unset.

        The result is ``none`` if only other exporters are listed.
        """
        if others := read_exporters(self._environ, self._signal):
            from importlib.metadata import entry_points

            offered = entry_points(group=EXPORTER_GROUPS[self._signal]).names
            if missing := [name for name in others if name not in offered]:
                # Names of OpenTelemetry's own packages; those of other packages are unknown.
                packages = [f"opentelemetry-exporter-{name.replace('_', '-')}" for name in missing]
                self.warnings.append(
                    f"OTEL_{self._signal.upper()}_EXPORTER: no exporter {', '.join(missing)} is "
                    f"installed: {self._signal} for this exporter are lost; available: "
                    f"{', '.join(sorted({*offered, 'otlp'}))}; pip install {' '.join(packages)}"
                )
        listed = [word.lower() for word in _listed(self._environ, self._signal)]
        return "otlp" if "otlp" in listed else "none" if listed else ""

    def _uses_grpc(self) -> bool:
        """Return whether the signal is sent by gRPC; warn if its protocol is unsupported."""
        variable, protocol = self._find("PROTOCOL")
        protocol = protocol.lower()
        if protocol not in ("", *_PORTS):
            self.warnings.append(
                f"{variable}={protocol}: only http/protobuf and grpc are supported; "
                "http/protobuf is used"
            )
        elif protocol == _GRPC and find_spec("grpc") is None:
            self.warnings.append(
                f"{variable}={protocol}: grpcio is not installed: unsent data stays in the run "
                f"folder; pip install grpcio, or set {_HTTP}"
            )
        return protocol == _GRPC

    def _with_scheme(self, address: str) -> str:
        """Return the address with a scheme.

        If a gRPC address lacks a scheme, the variable ``..._INSECURE`` selects http or https.
        """
        if not self.is_grpc or "/" in address:
            return address
        return f"{'http' if self._is_insecure()[1] else 'https'}://{address}"

    def _is_insecure(self) -> tuple[str, bool]:
        """Return the INSECURE variable's name, and whether it permits secrets over plain http."""
        variable, value = self._find("INSECURE")
        return variable, value.lower() == "true"

    def headers(self, url: SplitResult) -> dict[str, str]:
        """Return the headers to send, including the URL's login.

        No headers are sent over plain HTTP to another machine, unless ``..._INSECURE`` permits
        this.
        """
        variable, value = self._find("HEADERS")
        headers = self._parse_headers(variable, value)
        if url.username is not None:
            login = unquote(url.username), unquote(url.password or "")
            headers.setdefault("authorization", basic_login(*login))
        if not headers or not is_in_the_clear(url):
            return headers
        switch, is_insecure = self._is_insecure()
        if is_insecure:
            return headers
        self.warnings.append(
            f"{variable}: headers are not sent over plain http to {url.hostname}: "
            f"use https, or set {switch}=true"
        )
        return {}

    def _parse_headers(self, variable: str, value: str) -> dict[str, str]:
        headers = {}
        for place, pair in enumerate(filter(str.strip, value.split(",")), 1):
            name, sign, content = (unquote(part.strip(), "latin-1") for part in pair.partition("="))
            if name.lower() in _FRAMING:
                self.warnings.append(
                    f"{variable}: the header {name.lower()} describes the request itself and is "
                    "ignored; remove this header"
                )
            elif sign and _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(content):
                headers[name.lower()] = content
            else:
                self.warnings.append(
                    f"{variable}: header {place} is not of the form name=value and is ignored"
                )
        return headers

    def timeout_s(self) -> float:
        """Return the timeout of a request in seconds.

        Values below 100 ms are ignored, because they were probably meant as seconds.
        """
        variable, value = self._find("TIMEOUT")
        milliseconds = _positive(value)
        if milliseconds is not None and milliseconds >= _MIN_TIMEOUT_MS:
            return milliseconds / 1000
        if value:
            self.warnings.append(
                f"{variable}={value}: expected at least {_MIN_TIMEOUT_MS} milliseconds; "
                f"{_TIMEOUT_S * 1000:.0f} is used"
            )
        return _TIMEOUT_S

    def gzip(self) -> bool:
        """Return whether request bodies are compressed (default: yes)."""
        variable, value = self._find("COMPRESSION")
        if value.lower() not in ("", "gzip", "none"):
            self.warnings.append(f"{variable}={value} is unknown: gzip is used")
        return value.lower() != "none"

    def file(self, name: str, *, private: bool = False) -> str | None:
        """Return the path of the certificate or key ``name``; None if its variable is not set.

        The path of an unreadable file is returned as well, so that nothing can be sent: sending
        without the file would be less secure. If the file is ``private`` but other users can read
        it, a warning is added.
        """
        variable, path = self._find(name)
        if not path:
            return None
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            self.warnings.append(f"{variable}={path}: {error.strerror}: nothing can be sent")
            return path
        if private and mode & 0o077:
            self.warnings.append(f"{variable}={path} is readable for other users: chmod 600 {path}")
        return path


def _listed(environ: Mapping[str, str], signal: Signal) -> list[str]:
    words = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").split(",")
    return [*dict.fromkeys(word.strip() for word in words if word.strip())]


def _split(value: str) -> SplitResult | None:
    try:
        url = urlsplit(value)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return None
    return url if usable and value.isprintable() and " " not in value else None


def _shown(url: SplitResult) -> str:
    """Return the URL without login, query and fragment, so that it can be shown to users."""
    return url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _server(url: SplitResult) -> SplitResult:
    """Return the URL with a port and without a path, which gRPC does not use."""
    port = url.port or (443 if url.scheme == "https" else _PORTS[_GRPC])
    return _at_port(url, port)._replace(path="", query="", fragment="")


def _at_port(url: SplitResult, port: int) -> SplitResult:
    return url._replace(netloc=re.sub(r":\d+$", "", url.netloc) + f":{port}")


def _positive(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
