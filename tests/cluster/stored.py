"""Which spans does OpenSearch hold, and how often each?"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import urllib3

if TYPE_CHECKING:
    from collections.abc import Iterator

INDICES = "otel-mlperf-jaeger-span-*"


class StoredSpan(NamedTuple):
    """What tells one span from another, and whose it is."""

    trace_id: str
    span_id: str
    rank: int


def stored_spans(url: str, service: str) -> Counter[StoredSpan]:
    """A service's spans, with the number of times that each is stored: Jaeger shows it once."""
    _show_all(url)
    fields = ["traceID", "spanID", "process.tags"]
    asked = {"size": 5000, "_source": fields, "sort": ["_doc"], "query": _of(service)}
    page = _ask(f"{url}/{INDICES}/_search?scroll=2m", asked)
    found: Counter[StoredSpan] = Counter()
    while page.get("hits", {}).get("hits"):
        found.update(_spans(page["hits"]["hits"]))
        again = {"scroll": "2m", "scroll_id": page["_scroll_id"]}
        page = _ask(f"{url}/_search/scroll", again)
    # A look that stays open would be one of the 500 that a node allows; of no index there is none.
    if "_scroll_id" in page:
        _ask(f"{url}/_search/scroll", {"scroll_id": page["_scroll_id"]}, "DELETE")
    return found


def _show_all(url: str) -> None:
    # An index that is made, or read anew after a kill, does not answer before.
    _ask(f"{url}/_cluster/health/{INDICES}?wait_for_status=yellow&timeout=50s", method="GET")
    _ask(f"{url}/{INDICES}/_refresh")


def _of(service: str) -> dict[str, Any]:
    return {"term": {"process.serviceName": service}}


def _spans(hits: list[dict[str, Any]]) -> Iterator[StoredSpan]:
    for hit in hits:
        span = hit["_source"]
        tags = {tag["key"]: tag["value"] for tag in span["process"]["tags"]}
        rank = int(tags.get("ml.distributed.rank", -1))
        yield StoredSpan(span["traceID"], span["spanID"], rank)


def _ask(url: str, body: dict[str, Any] | None = None, method: str = "POST") -> dict[str, Any]:
    answer = urllib3.request(method, url, json=body, timeout=60.0)
    if answer.status != 200:
        raise RuntimeError(f"{url} answered {answer.status}: {answer.data[:500]!r}")
    return json.loads(answer.data)
