"""Bisection of refused requests, until every item but the unreadable ones is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.client import Outcome, ServerAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

_POINT_FIELDS = (5, 7, 9, 10)
"""Fields of a metric for gauge, sum, histogram and exponential histogram."""


def post_in_parts(
    post: Callable[[bytes], ServerAnswer], body: bytes, signal: str, lost: dict[str, int]
) -> ServerAnswer:
    """Send a request, in halves if the server requires it, down to the one unreadable item.

    Args:
        post: sends one request; it decides itself whether it waits and retries.
        body: as for ``halves``.
        signal: ``traces`` or ``metrics``.
        lost: incremented, by reason, by the items that the server has refused for good.

    Returns:
        DELIVERED when everything that was not refused is accepted; otherwise the first answer that
        requires a retry. Parts that were accepted before that will be sent again: servers recognize
        them by their ids.
    """
    answer = post(body)
    if answer.rejected:
        # A server may report any number; these are the maximum.
        rejected = min(answer.rejected, count_items(body, signal))
        lost["rejected"] = lost.get("rejected", 0) + rejected
    if answer.outcome not in (Outcome.REJECTED, Outcome.TOO_LARGE):
        return answer
    # Halving finds one bad item among n with some 2 log2(n) requests, whatever the answer contains.
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
    """Return two requests with half of the spans, or metrics, each; None if there is only one.

    ``body`` is a request as ``encode_spans`` and ``encode_metrics`` make it: one resource, one
    scope.
    """
    about, items = _parts(body)
    if len(items) < 2:
        return None
    middle = len(items) // 2
    return _whole(about, items[:middle]), _whole(about, items[middle:])


def count_items(body: bytes, signal: str) -> int:
    """Count the spans, or metric points, in a request."""
    _, items = _parts(body)
    return len(items) if signal == "traces" else sum(map(_points, items))


def _points(metric: bytes) -> int:
    # Field 1 of its data is a point, for every kind of metric.
    data = [value for field, _, value in wire.fields(metric) if field in _POINT_FIELDS]
    return sum(
        field == 1
        for value in data
        if isinstance(value, bytes)
        for field, _, _ in wire.fields(value)
    )


class _Envelope(NamedTuple):
    """Envelope: the common fields of the spans or metrics of a request."""

    resource: bytes
    scope: bytes
    schema_url: str
    scope_schema_url: str


def _parts(body: bytes) -> tuple[_Envelope, list[bytes]]:
    # The fields that ``wire.envelope`` writes; foreign bodies never come here.
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
    """Add a scope's spans or metrics to ``items``."""
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
