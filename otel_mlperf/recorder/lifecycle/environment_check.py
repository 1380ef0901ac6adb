"""Checks of environment variables, endpoints and trackers when a run starts.

Without the warnings, unknown variables and invalid endpoints would be ignored silently.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from otel_mlperf.errors import ConfigError
from otel_mlperf.recorder.core.faults import warn_once
from otel_mlperf.settings.config import DESTINATIONS, ENDPOINT, PREFIX, PROTOCOLS, known_variables
from otel_mlperf.settings.declared_config import declare
from otel_mlperf.settings.standard_variables import describe_unused
from otel_mlperf.settings.tracker_list import unusable

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_SIGNALS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_STANDARD = ("OTEL_EXPORTER_OTLP_", "OTEL_TRACES_", "OTEL_METRICS_", "OTEL_METRIC_")
_OF_CONFIG = "OTEL_METRIC_EXPORT_INTERVAL"
"""Variable whose errors are already reported when the settings are loaded."""
_EXAMPLE = "http://localhost:4318"


def check_environ(environ: Mapping[str, str], endpoint: str, destinations: str) -> None:
    """Log each problem of the environment once.

    Args:
        environ: the environment.
        endpoint: the effective endpoint.
        destinations: the effective destinations.

    Raises:
        ConfigError: a setting that does not come from the environment is invalid: the endpoint is
            no URL, or a tracker's requirements are not met.
    """
    _check_names(environ)
    _check_trackers(environ, destinations)
    environ, warnings = declare(environ)
    for warning in filter(None, [*warnings, describe_unused(environ)]):
        warn_once(warning)
    given = {name: environ.get(name, "").strip() for name in (ENDPOINT, *_OF_SIGNALS)}
    argument = endpoint if endpoint and endpoint != given[ENDPOINT] else None
    scheme = "https://" if _is_grpc_requested(environ) else ""
    if argument is not None:
        given = {"endpoint": argument}
        if not _is_url(argument, scheme):
            raise ConfigError(f"endpoint: {_no_url(argument)}")
    bad = {name: value for name, value in given.items() if value and not _is_url(value, scheme)}
    for name, value in bad.items():
        warn_once(f"{name}: {_no_url(value)}; nothing is sent there")
    if not bad and (argument or any(name.startswith(_STANDARD) for name in environ)):
        _check_standard(environ, argument)
    if any(name.endswith("_LIMIT") for name in environ):
        from otel_mlperf.otlp.span_limits import read_span_limits

        for warning in read_span_limits(environ)[1]:
            warn_once(warning)


def _check_trackers(environ: Mapping[str, str], destinations: str) -> None:
    for lack in unusable(destinations, environ):
        if DESTINATIONS not in environ:
            raise ConfigError(f"destinations: {lack}")
        warn_once(f"{DESTINATIONS}: {lack}; its data will be dropped")


def _check_standard(environ: Mapping[str, str], endpoint: str | None) -> None:
    from otel_mlperf.otlp.endpoint_settings import read_metric_settings, read_settings

    warnings = [read_settings(environ, signal, endpoint)[1] for signal in ("traces", "metrics")]
    for warning in dict.fromkeys([*chain(*warnings), *read_metric_settings(environ)[1]]):
        if not warning.startswith(_OF_CONFIG):
            warn_once(warning)


def _check_names(environ: Mapping[str, str]) -> None:
    known = known_variables()
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            import difflib

            endings = [variable.removeprefix(PREFIX) for variable in known]
            close = difflib.get_close_matches(name.removeprefix(PREFIX), endings, 1, 0.5)
            hint = f"did you mean {PREFIX}{close[0]}?" if close else "see help(otel_mlperf.Config)"
            warn_once(f"{name} is unknown and has no effect; {hint}")


def _is_grpc_requested(environ: Mapping[str, str]) -> bool:
    return any(environ.get(name, "").strip().lower() == "grpc" for name in PROTOCOLS)


def _is_url(text: str, scheme: str) -> bool:
    """Return whether a text is an HTTP URL; ``scheme`` is prepended to a text without ``/``."""
    try:
        url = urlsplit(text if "/" in text else f"{scheme}{text}")
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
    return usable and text.isprintable() and " " not in text


def _no_url(text: str) -> str:
    # Shown without login and query: even an invalid URL may contain secrets there.
    harmless = text.rpartition("@")[2].partition("?")[0]
    return f"found {harmless!r}, expected a URL like {_EXAMPLE}"
