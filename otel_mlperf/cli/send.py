"""Implementation of ``export --otlp``: delivery of a recorded run's spans to a server."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import closing

from otel_mlperf.cli.output import echo, warn
from otel_mlperf.errors import Unreachable
from otel_mlperf.settings.config import ENDPOINT


def send(run: str, endpoint: str | None) -> None:
    """Send the sampled spans of a run to ``endpoint`` (None: the environment's endpoint).

    Sending spans repeatedly is harmless, since their ids do not change.
    """
    from otel_mlperf.otlp.grpc_client import open_client
    from otel_mlperf.replay.span_requests import count_spans, deliver, requests, traces_settings
    from otel_mlperf.settings.run_settings import read_stored
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.store.table_reader import Store

    chosen = find_run(run)
    recorded = read_stored(chosen.path, os.environ).recorded_destinations.get(ENDPOINT, "")
    settings = traces_settings(endpoint, os.environ, warn, recorded and shlex.quote(recorded))
    store = Store(chosen.path)
    wanted, sent, refused = count_spans(store), 0, 0
    with closing(open_client(settings)) as client:
        for spans, body in requests(chosen, store):
            lost = deliver(client, body)
            sent, refused = sent + spans - lost, refused + lost
            if sys.stderr.isatty():
                print(f"\r{sent:,} of {wanted:,} spans", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    echo(f"{sent:,} of {wanted:,} sampled spans of {chosen.path.name} sent to {settings.endpoint}")
    if refused:
        raise Unreachable(f"sending to {settings.endpoint}: the server rejected {refused:,} spans")
