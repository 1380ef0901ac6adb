"""Bisection of refused requests, until every item but the unreadable ones is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.client import Outcome, ServerAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

_POINT_FIELDS = (5, 7, 9, 10)
"""Gauge, sum, histogram and exponential histogram of a metric."""


def post_in_parts(
    post: Callable[[bytes], ServerAnswer], body: bytes, signal: str, lost: dict[str, int]
) -> ServerAnswer:
    """Sends a request, in halves where the server wants it, down to the one item it cannot read.

    Args:
        post: sends one request; whether it waits and tries again is its own matter.
        body: as ``halves`` takes it.
        signal: ``traces`` or ``metrics``.
        lost: is told by reason how many items the server has refused for good.

    Returns:
        DELIVERED when all that was not refused is taken; else the first answer that says to try
        later. What was taken before that will be sent again: servers know it by its ids.
    """
    answer = post(body)
    if answer.rejected:
        # A server may claim any number; there were no more than these.
        rejected = min(answer.rejected, count_items(body, signal))
        lost["rejected"] = lost.get("rejected", 0) + rejected
    if answer.outcome not in (Outcome.REJECTED, Outcome.TOO_LARGE):
        return answer
    # Halving finds one bad item among n with some 2 log2(n) requests, whatever the answer says.
    parts = halves(body)
    if parts is None:
        reason = answer.outcome.value
        lost[reason] = lost.get(reason, 0) + count_items(body, signal)
        return ServerAnswer(Outcome.DELIVERED, answer.reason)
    for part in parts:
        answer = post_in_parts(post, part, signal, lost)
        # The other half would meet the same server: it waits with this one.
        if answer.outcome is not Outcome.DELIVERED:
            break
    return answer


def halves(body: bytes) -> tuple[bytes, bytes] | None:
    """Two requests with half of the spans, or metrics, each; None where there is only one.

    ``body`` is a request as ``encode_spans`` and ``encode_metrics`` make it: one resource, one
    scope.
    """
    about, items = _parts(body)
    if len(items) < 2:
        return None
    middle = len(items) // 2
    return _whole(about, items[:middle]), _whole(about, items[middle:])


def count_items(body: bytes, signal: str) -> int:
    """Spans, or metric points, in a request."""
    _, items = _parts(body)
    return len(items) if signal == "traces" else sum(map(_points, items))


def _points(metric: bytes) -> int:
    # Whatever kind of metric it is, field 1 of its data is a point.
    data = [value for field, _, value in wire.fields(metric) if field in _POINT_FIELDS]
    return sum(
        field == 1
        for value in data
        if isinstance(value, bytes)
        for field, _, _ in wire.fields(value)
    )


class _Envelope(NamedTuple):
    """What the spans or metrics of a request have in common."""

    resource: bytes
    scope: bytes
    schema_url: str
    scope_schema_url: str


def _parts(body: bytes) -> tuple[_Envelope, list[bytes]]:
    # The fields that ``wire.envelope`` writes; a stranger's body never comes here.
    about = _Envelope(b"", b"", "", "")
    items: list[bytes] = []
    for _, _, outer in wire.fields(body):
        for field, _, value in wire.fields(_bytes(outer)):
            content = _bytes(value)
            if field == 1:
                about = about._replace(resource=content)
            elif field == 3:
                about = about._replace(schema_url=content.decode())
            else:
                about = _scope_parts(about, content, items)
    return about, items


def _scope_parts(about: _Envelope, content: bytes, items: list[bytes]) -> _Envelope:
    """Adds a scope's spans or metrics to ``items``."""
    for field, _, value in wire.fields(content):
        if field == 1:
            about = about._replace(scope=_bytes(value))
        elif field == 2:
            items.append(_bytes(value))
        else:
            about = about._replace(scope_schema_url=_bytes(value).decode())
    return about


def _whole(about: _Envelope, items: list[bytes]) -> bytes:
    blocks = b"".join(wire.block(2, item) for item in items)
    resource, scope, *schemas = about
    before, after = wire.envelope(resource, scope, len(blocks), *schemas)
    return before + blocks + after


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message was expected")
    return value
