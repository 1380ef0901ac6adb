"""Which queries do the shipped dashboards ask, with their variables filled in?"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from servers.running import DEPLOY

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRAINING_RUN = DEPLOY / "grafana" / "dashboards" / "training-run.json"
DASHBOARDS = sorted(TRAINING_RUN.parent.glob("*.json"))
COMPARES = TRAINING_RUN.with_name("sections.json")
"""The one in which several runs are chosen."""
ABOUT_PROCESSES = "target_info"
"""What Prometheus makes itself of each process: all that is said of it."""
METRICS = {metric.prometheus: metric for metric in names.METRICS}


class Query(NamedTuple):
    """One query of one panel."""

    panel: str
    legend: str
    expr: str
    none: str = ""
    """What the panel says where there is no answer."""
    dashboard: str = ""


def panels(path: Path = TRAINING_RUN) -> Iterator[dict[str, Any]]:
    """Every panel of a dashboard, those inside collapsed rows included."""
    for panel in json.loads(path.read_text())["panels"]:
        yield panel
        yield from panel.get("panels", [])


def dashboard_queries(
    run: str,
    rank: str = ".*",
    span: str = "1m",
    path: Path = TRAINING_RUN,
    instance: str = ".*",
) -> list[Query]:
    """Every query of a dashboard as Grafana would send it.

    Args:
        run: The run's name.
        rank: A regular expression of ranks; the default is what "All" means.
        span: The length of every window, as a PromQL duration.
        path: The dashboard's file.
        instance: A regular expression of processes; the default is all runs of that name.
    """
    return [
        Query(
            panel["title"],
            target["legendFormat"],
            filled(target["expr"], run, rank, span, instance),
            panel["fieldConfig"]["defaults"].get("noValue", ""),
            path.stem,
        )
        for panel in panels(path)
        for target in panel.get("targets", [])
        if "expr" in target
    ]


def trace_search(service: str, run_id: str) -> dict[str, str]:
    """The search for traces of the training dashboard, as Grafana sends it to Jaeger."""
    targets = [target for panel in panels() for target in panel.get("targets", [])]
    (search,) = (target for target in targets if target.get("queryType") == "search")
    tags = search["tags"].replace("$id", run_id)
    return {
        "service": search["service"].replace("$service", service),
        "operation": search["operation"],
        "tags": json.dumps(dict(tag.split("=", 1) for tag in tags.split())),
        "limit": str(search["limit"]),
    }


def every_query(run: str, rank: str = ".*", span: str = "1m") -> list[Query]:
    """The same of all dashboards."""
    return [query for path in DASHBOARDS for query in dashboard_queries(run, rank, span, path)]


def annotations(run: str, span: str = "1m", path: Path = TRAINING_RUN) -> list[str]:
    """The queries of a dashboard's marks: starts, checkpoints, validation."""
    marks = json.loads(path.read_text())["annotations"]["list"]
    return [filled(mark["target"]["expr"], run, span=span) for mark in marks]


def variable(name: str, run: str, run_id: str = "") -> str:
    """What Grafana asks for the values of a variable, less the function around the query."""
    listed = json.loads(TRAINING_RUN.read_text())["templating"]["list"]
    (query,) = (one["query"]["query"] for one in listed if one["name"] == name)
    inner = re.fullmatch(r"(?:query_result|label_values)\((.*?)(?:, \w+)?\)", query)[1]
    return filled(inner.replace("$id", run_id), run, span="1h")


def filled(expr: str, run: str, rank: str = ".*", span: str = "1m", instance: str = ".*") -> str:
    """A query with its variables filled in; all ids, hosts and GPUs are chosen."""
    values = {
        "$run": run,
        "$id": ".*",
        "$rank": rank,
        "$instance": instance,
        "$host": ".*",
        "$gpu": ".*",
        "$__rate_interval": span,
        "$__range": span,
    }
    for variable, value in values.items():
        expr = expr.replace(variable, value)
    return expr


def selectors(expr: str) -> list[tuple[str, set[str]]]:
    """The metric names of a query, each with the labels that it is selected by."""
    return [
        (name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)))
        for name, inside in re.findall(r"(\w+)\{([^}]*)\}", expr)
    ]


def labels_of(name: str) -> set[str]:
    """The labels that the points of a metric carry, by its name in Prometheus."""
    if name == ABOUT_PROCESSES:
        return {names.RUN_ID.replace(".", "_")}
    return {label.replace(".", "_") for label in METRICS[name].labels}
