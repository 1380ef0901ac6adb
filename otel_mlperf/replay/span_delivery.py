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
"""Maximum number of tries: a user waits, unlike with the agent, which retries while it has room."""


def traces_settings(
    endpoint: str | None,
    environ: Mapping[str, str],
    warn: Callable[[str], None],
    recorded: str = "",
) -> SignalSettings:
    """Return the endpoint settings for spans, from the command line option or from ``environ``.

    Problems with variables that do not prevent delivery are passed to ``warn``. ``recorded`` is the
    endpoint that the run folder names: a hint for the error message.

    Raises:
        ConfigError: no endpoint is set, or a variable cannot be parsed.
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
    """Deliver one request, split if the server requires it; return how many spans it refused.

    Raises:
        Unreachable: no success after a few tries, or the server denies access.
    """
    from otel_mlperf.otlp.split import post_in_parts

    lost: dict[str, int] = {}
    post_in_parts(partial(_post, client), body, "traces", lost)
    return sum(lost.values())


def _post(client: OtlpClient, body: bytes) -> ServerAnswer:
    """Return the server's definite answer to one request, or to one part of it."""
    from otel_mlperf.otlp.client import Backoff, Outcome

    backoff = Backoff()
    for tries_left in reversed(range(_TRIES)):
        answer = client.post(body)
        if answer.outcome in (Outcome.DELIVERED, Outcome.REJECTED, Outcome.TOO_LARGE):
            return answer
        # Waiting cannot help, or no try is left.
        if answer.outcome is Outcome.UNAUTHORIZED or not tries_left:
            break
        time.sleep(backoff.failed(answer.after_s))
    raise Unreachable(f"sending: {answer.reason}")
