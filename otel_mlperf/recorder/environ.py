"""Which variables and endpoints does nobody understand, so that they would be ignored silently?"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from otel_mlperf.config import ENDPOINT, PREFIX, known_variables
from otel_mlperf.errors import ConfigError
from otel_mlperf.recorder.faults import say_once

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_SIGNALS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_EXAMPLE = "http://localhost:4318"


def check_environ(environ: Mapping[str, str], endpoint: str) -> None:
    """Says once what is wrong with the environment.

    Args:
        environ: the environment.
        endpoint: the one in force.

    Raises:
        ConfigError: the endpoint is no URL, and is not the environment's.
    """
    _check_names(environ)
    given = {name: environ.get(name, "").strip() for name in (ENDPOINT, *_OF_SIGNALS)}
    if endpoint and endpoint != given[ENDPOINT]:
        given = {"endpoint": endpoint}
        if not _is_url(endpoint):
            raise ConfigError(f"endpoint: {_no_url(endpoint)}")
    for name, value in given.items():
        if value and not _is_url(value):
            say_once(f"{name}: {_no_url(value)}; nothing is sent there")
        elif value and environ.get(_PROTOCOL, "").strip() in ("", "http/protobuf"):
            _check_port(name, value)


def _check_names(environ: Mapping[str, str]) -> None:
    known = known_variables()
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            endings = [one.removeprefix(PREFIX) for one in known]
            close = difflib.get_close_matches(name.removeprefix(PREFIX), endings, 1, 0.5)
            hint = f"did you mean {PREFIX}{close[0]}?" if close else "see help(otel_mlperf.Config)"
            say_once(f"{name} is not known and has no effect; {hint}")


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
    return usable and text.isprintable() and " " not in text


def _no_url(text: str) -> str:
    # What is no URL may still hold a login in front, or a key behind.
    harmless = text.rpartition("@")[2].partition("?")[0]
    return f"found {harmless!r}, expected a URL like {_EXAMPLE}"


def _check_port(name: str, text: str) -> None:
    url = urlsplit(text)
    if url.port != 4317:
        return
    place = re.sub(r":\d+$", ":4318", url.netloc.rpartition("@")[2])
    other = url._replace(netloc=place, query="", fragment="").geturl()
    say_once(f"{name}: 4317 speaks gRPC; you set http/protobuf: use {other}")
