"""Bisection of refused requests, so that only the items that a server refuses are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.http_client import Outcome, ServerAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

_POINT_FIELDS = (5, 7, 9, 10)
"""Field numbers of ``Metric`` for gauge, sum, histogram and exponential histogram."""


def post_in_parts(
    post: Callable[[bytes], ServerAnswer], body: bytes, signal: str, lost: dict[str, int]
) -> ServerAnswer:
    """Send a request; if the server refuses it, send both halves, recursively down to one item.

    Args:
        post: Function that sends one request; it can itself wait and retry.
        body: Request as for ``halves``.
        signal: ``traces`` or ``metrics``.
        lost: Numbers of permanently refused items by reason, to which this function adds.

    Returns:
        DELIVERED if all items are either accepted or permanently refused; otherwise the first
        answer that requires a retry. The retry sends accepted parts again, which is harmless,
        because servers recognize repeated items.
    """
    answer = post(body)
    if answer.rejected:
        # A server may report any number: limit it to the number of items.
        rejected = min(answer.rejected, count_items(body, signal))
        lost["rejected"] = lost.get("rejected", 0) + rejected
    if answer.outcome not in (Outcome.REJECTED, Outcome.TOO_LARGE):
        return answer
    # Halving isolates one bad item among n with about 2 log2(n) requests, independent of the
    # content of answers.
    parts = halves(body)
    if parts is None:
        reason = answer.outcome.value
        lost[reason] = lost.get(reason, 0) + count_items(body, signal)
        return ServerAnswer(Outcome.DELIVERED, answer.reason)
    for part in parts:
        answer = post_in_parts(post, part, signal, lost)
        # Do not send the other half to a server that must be retried later.
        if answer.outcome is not Outcome.DELIVERED:
            break
    return answer


def halves(body: bytes) -> tuple[bytes, bytes] | None:
    """Return two requests with half of the spans or metrics each; None if there is only one item.

    ``body`` is a request of ``encode_spans`` or ``encode_metrics``, with one resource and one
    scope.
    """
    about, items = _parts(body)
    if len(items) < 2:
        return None
    middle = len(items) // 2
    return _whole(about, items[:middle]), _whole(about, items[middle:])


def count_items(body: bytes, signal: str) -> int:
    """Return the number of spans or metric points in an encoded request."""
    _, items = _parts(body)
    return len(items) if signal == "traces" else sum(map(_points, items))


def _points(metric: bytes) -> int:
    # Points are field 1 of the data of all kinds of metrics.
    data = [value for field, _, value in wire.fields(metric) if field in _POINT_FIELDS]
    return sum(
        field == 1
        for value in data
        if isinstance(value, bytes)
        for field, _, _ in wire.fields(value)
    )


class _Envelope(NamedTuple):
    resource: bytes
    scope: bytes
    schema_url: str
    scope_schema_url: str


def _parts(body: bytes) -> tuple[_Envelope, list[bytes]]:
    # Expects the fields that ``wire.envelope`` writes: only requests of this package are passed.
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
