"""``otel-mlperf send``: how does a run that was recorded without a server get to one?"""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from otel_mlperf.cli.commands import RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.errors import ConfigError, Unreachable

if TYPE_CHECKING:
    from otel_mlperf.otlp.client import Client
    from otel_mlperf.otlp.settings import SignalSettings

_TRIES = 3


def send(
    run: RunArgument = "latest",
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="Where to, like http://localhost:4318; OTEL_EXPORTER_OTLP_ENDPOINT by default.",
        ),
    ] = None,
) -> None:
    """Send the kept spans of a run to a server.

    Sending twice does no harm: they keep their ids.
    """
    from otel_mlperf.cli.replay import count_spans, requests
    from otel_mlperf.otlp.client import Client
    from otel_mlperf.store.reader import Store
    from otel_mlperf.store.runs import find_run

    found = find_run(run)
    settings = traces_settings(endpoint)
    store = Store(found.path)
    wanted, sent, refused = count_spans(store), 0, 0
    with closing(Client(settings)) as client:
        for spans, body in requests(found, store):
            lost = deliver(client, body)
            sent, refused = sent + spans - lost, refused + lost
            if sys.stderr.isatty():
                print(f"\r{sent:,} of {wanted:,} spans", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    print(f"{sent:,} of {wanted:,} kept spans of {found.path.name} sent to {settings.endpoint}")
    if refused:
        raise Unreachable(f"sending to {settings.endpoint}: it refused {refused:,} spans")


def traces_settings(endpoint: str | None) -> SignalSettings:
    """Where spans go.

    Raises:
        ConfigError: nowhere, or a variable cannot be understood.
    """
    from otel_mlperf.otlp.settings import read_settings

    settings, warnings = read_settings(os.environ, "traces", endpoint)
    if settings is None and warnings:
        raise ConfigError(f"sending: {'; '.join(warnings)}")
    for warning in warnings:
        print(f"otel-mlperf: {warning}", file=sys.stderr)
    if settings is None:
        raise ConfigError(
            "sending: no endpoint is set; give --endpoint http://localhost:4318 "
            "or set OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    return settings


def deliver(client: Client, body: bytes) -> int:
    """Delivers one request, in halves where the server wants it; how many spans it refused.

    Raises:
        Unreachable: no success after a few tries, or the server does not let us in.
    """
    from otel_mlperf.otlp.backoff import Backoff
    from otel_mlperf.otlp.client import Outcome
    from otel_mlperf.otlp.split import halves

    backoff = Backoff()
    for tries_left in reversed(range(_TRIES)):
        answer = client.post(body)
        if answer.outcome is Outcome.DELIVERED:
            return answer.rejected
        if answer.outcome in (Outcome.REJECTED, Outcome.TOO_LARGE):
            parts = halves(body)
            return sum(deliver(client, part) for part in parts) if parts else 1
        if answer.outcome is Outcome.UNAUTHORIZED or not tries_left:
            break
        time.sleep(backoff.failed(answer.after_s))
    raise Unreachable(f"sending: {answer.reason}")
