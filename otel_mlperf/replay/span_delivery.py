"""Manual delivery of spans to a server: endpoint, retries and partial success."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_mlperf.errors import ConfigError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mlperf.otlp.client import OtlpClient, ServerAnswer
    from otel_mlperf.otlp.endpoint_settings import SignalSettings

_TRIES: Final = 3
"""Somebody waits at the terminal, unlike with the agent, which tries for as long as it has room."""


def traces_settings(
    endpoint: str | None,
    environ: Mapping[str, str],
    warn: Callable[[str], None],
    recorded: str = "",
) -> SignalSettings:
    """Where spans go, by an option of the command line or by ``environ``.

    What is wrong with variables and does not keep spans from going there is told to ``warn``.
    ``recorded`` is the endpoint that the run folder names: a hint for the message of the error.

    Raises:
        ConfigError: nowhere, or a variable cannot be understood.
    """
    from otel_mlperf.otlp.endpoint_settings import read_settings

    settings, warnings = read_settings(environ, "traces", endpoint)
    if settings is None:
        why = "; ".join(warnings) or (
            f"no endpoint is set; give --endpoint {recorded or 'http://localhost:4318'} "
            "or set OTEL_EXPORTER_OTLP_ENDPOINT"
            + (": the run folder names that one, and may be somebody else's" if recorded else "")
        )
        raise ConfigError(f"sending: {why}")
    for warning in warnings:
        warn(warning)
    return settings


def deliver(client: OtlpClient, body: bytes) -> int:
    """Delivers one request, in halves where the server wants it; how many spans it refused.

    Raises:
        Unreachable: no success after a few tries, or the server does not let us in.
    """
    from otel_mlperf.otlp.split import post_in_parts

    lost: dict[str, int] = {}
    post_in_parts(partial(_post, client), body, "traces", lost)
    return sum(lost.values())


def _post(client: OtlpClient, body: bytes) -> ServerAnswer:
    """The server's clear word about one request, or about one part of it."""
    from otel_mlperf.otlp.client import Backoff, Outcome

    backoff = Backoff()
    for tries_left in reversed(range(_TRIES)):
        answer = client.post(body)
        if answer.outcome in (Outcome.DELIVERED, Outcome.REJECTED, Outcome.TOO_LARGE):
            return answer
        # Nothing that waiting could change, or no try left.
        if answer.outcome is Outcome.UNAUTHORIZED or not tries_left:
            break
        time.sleep(backoff.failed(answer.after_s))
    raise Unreachable(f"sending: {answer.reason}")
