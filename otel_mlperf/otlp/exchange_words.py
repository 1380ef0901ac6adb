"""Descriptions of failed exchanges with a server: short, and without our secrets."""

from __future__ import annotations

import re
import ssl
from email.utils import parsedate_to_datetime
from http.client import BadStatusLine
from typing import TYPE_CHECKING, Final

from otel_mlperf.otlp.endpoint_settings import port_hint

if TYPE_CHECKING:
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
