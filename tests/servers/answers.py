"""What do Jaeger and Prometheus hold, as plain Python objects?"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import urllib3

STATUS = {0: "unset", 1: "ok", 2: "error"}


@dataclass(frozen=True, slots=True)
class JaegerSpan:
    """One span as Jaeger gives it back."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    status: str
    attributes: dict[str, Any] = field(default_factory=dict)
    resource: dict[str, Any] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sample:
    """One element of an instant vector: a number, or a native histogram."""

    labels: dict[str, str]
    value: float
    histogram: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One exemplar and the labels of the series that it belongs to."""

    series: dict[str, str]
    trace_id: str
    span_id: str
    value: float
    time: float


def jaeger_services(url: str) -> list[str]:
    """The services that Jaeger has spans of."""
    return sorted(_get(f"{url}/api/v3/services").get("services", []))


def jaeger_trace(url: str, trace_id: str) -> list[JaegerSpan]:
    """Every span of a trace, none when Jaeger does not know it."""
    answer = urllib3.request("GET", f"{url}/api/v3/traces/{trace_id}", timeout=60.0)
    if answer.status == 404:
        return []
    found = _content(answer)["result"]
    return [
        _span(span, _attributes(group.get("resource", {})))
        for group in found.get("resourceSpans", [])
        for scope in group["scopeSpans"]
        for span in scope["spans"]
    ]


def jaeger_search(url: str, fields: dict[str, str]) -> set[str]:
    """The ids of the traces that Jaeger's search finds."""
    return {trace["traceID"] for trace in _get(f"{url}/api/traces", fields)["data"]}


def promql(url: str, query: str, time: float | None = None) -> list[Sample]:
    """The answer to an instant query, at ``time`` (Unix seconds) or now."""
    fields = {"query": query} | ({} if time is None else {"time": str(time)})
    found = _get(f"{url}/api/v1/query", fields)["data"]
    if found["resultType"] == "scalar":
        return [Sample({}, float(found["result"][1]))]
    return [_sample(one) for one in found["result"]]


def promql_exemplars(url: str, query: str, start: float, end: float) -> list[Exemplar]:
    """The exemplars of the series that ``query`` names, between two Unix times."""
    fields = {"query": query, "start": str(start), "end": str(end)}
    return [
        Exemplar(
            series["seriesLabels"],
            one["labels"].get("trace_id", ""),
            one["labels"].get("span_id", ""),
            float(one["value"]),
            float(one["timestamp"]),
        )
        for series in _get(f"{url}/api/v1/query_exemplars", fields)["data"]
        for one in series["exemplars"]
    ]


def prometheus_rules(url: str) -> list[dict[str, Any]]:
    """The rules that Prometheus evaluates, with what it says of each."""
    groups = _get(f"{url}/api/v1/rules")["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def prometheus_targets(url: str) -> dict[str, str]:
    """Where Prometheus scrapes which component of the stack."""
    found = _get(f"{url}/api/v1/targets", {"state": "active"})["data"]["activeTargets"]
    return {one["labels"]["component"]: one["scrapeUrl"] for one in found}


def _get(url: str, fields: dict[str, str] | None = None) -> Any:
    return _content(urllib3.request("GET", url, fields=fields, timeout=60.0))


def _content(answer: urllib3.BaseHTTPResponse) -> Any:
    if answer.status != 200:
        said = answer.data.decode(errors="replace")[:500]
        raise RuntimeError(f"{answer.url} answered {answer.status}: {said}")
    return json.loads(answer.data)


def _span(span: dict[str, Any], resource: dict[str, Any]) -> JaegerSpan:
    return JaegerSpan(
        span["traceId"],
        span["spanId"],
        span.get("parentSpanId", ""),
        span["name"],
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
        STATUS[span.get("status", {}).get("code", 0)],
        _attributes(span),
        resource,
        [(link["traceId"], link["spanId"]) for link in span.get("links", [])],
        [event["name"] for event in span.get("events", [])],
    )


def _attributes(owner: dict[str, Any]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in owner.get("attributes", [])}


def _value(value: dict[str, Any]) -> Any:
    kind, content = next(iter(value.items()))
    if kind == "intValue":  # a string in JSON, because JavaScript's numbers end at 2^53
        return int(content)
    if kind == "arrayValue":
        return [_value(one) for one in content.get("values", [])]
    return content


def _sample(one: dict[str, Any]) -> Sample:
    if "histogram" in one:
        histogram = one["histogram"][1]
        return Sample(one["metric"], float(histogram["count"]), histogram)
    return Sample(one["metric"], float(one["value"][1]))
