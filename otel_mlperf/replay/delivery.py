"""How does one request get to a server by hand, in pieces where the server wants it?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from otel_mlperf.errors import Unreachable

if TYPE_CHECKING:
    from otel_mlperf.otlp.client import Client

_TRIES: Final = 3


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
