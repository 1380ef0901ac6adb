"""Do the dashboards ask for what the package sends, and can people read them?"""

from __future__ import annotations

import json
import re

import pytest
import yaml
from servers.dashboard import TRAINING_RUN, dashboard_queries, panels
from servers.running import DEPLOY

from otel_mlperf import names

DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
DATASOURCES = yaml.safe_load(
    (DEPLOY / "grafana" / "provisioning" / "datasources" / "stack.yaml").read_text()
)["datasources"]

METRICS = {metric.prometheus: metric for metric in names.METRICS}
PROMOTED = {name.replace(".", "_") for name in PROMETHEUS["otlp"]["promote_resource_attributes"]}

each_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
each_query = pytest.mark.parametrize(
    "query", dashboard_queries("any-run"), ids=lambda query: query.panel
)


def selectors(expr):
    """The metric names of a query, each with the labels that it is selected by."""
    return [
        (name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)))
        for name, inside in re.findall(r"(\w+)\{([^}]*)\}", expr)
    ]


@each_query
def test_queries_name_metrics_that_are_sent(query):
    """Every metric of a query is one that the package makes, with labels that it carries."""
    found = selectors(query.expr)

    assert found
    for name, labels in found:
        carried = {label.replace(".", "_") for label in METRICS[name].labels}
        assert labels <= carried | PROMOTED


@each_query
def test_groupings_are_by_labels_that_exist(query):
    """What a query groups by, and what its legend shows, is a label of its metrics."""
    groups = re.findall(r"\b(?:by|ignoring)\s*\(([^)]*)\)", query.expr)
    used = {label.strip() for group in groups for label in group.split(",")}
    used |= set(re.findall(r"{{(\w+)}}", query.legend))
    carried = {
        label.replace(".", "_")
        for name, _ in selectors(query.expr)
        for label in METRICS[name].labels
    }

    assert used <= carried | PROMOTED


@each_query
def test_queries_are_of_one_run(query):
    """No panel mixes runs; ranks are chosen in all that a rank sends, not in its agent's counts."""
    for name, by in selectors(query.expr):
        assert "ml_run_name" in by
        assert ("ml_distributed_rank" in by) == (METRICS[name] is not names.ITEMS)


@each_dashboard
def test_panels_can_be_told_apart(path):
    """Ids and titles are unique, and no panel covers another."""
    found = list(panels(path))
    cells = [
        (x, y)
        for panel in found
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]

    assert len({panel["id"] for panel in found}) == len(found)
    assert len({panel["title"] for panel in found}) == len(found)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@each_dashboard
def test_panels_say_what_they_answer(path):
    """Every panel's description begins with its question."""
    for panel in panels(path):
        if panel["type"] != "row":
            assert re.match(r"[A-Z][^.]*\?", panel["description"]), panel["title"]


@each_dashboard
def test_data_sources_are_chosen_by_variable(path):
    """Nothing in a dashboard is bound to one Grafana's data source."""
    dashboard = json.loads(path.read_text())
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    owners = [
        *(target for panel in panels(path) for target in panel.get("targets", [])),
        *(panel for panel in panels(path) if panel["type"] != "row"),
        *(one for one in dashboard["templating"]["list"] if one["type"] == "query"),
    ]

    assert "datasource" in {one["name"] for one in dashboard["templating"]["list"]}
    assert all(owner["datasource"] == chosen for owner in owners)


def test_variables_list_what_is_there():
    """Run and rank are read from a metric that every process of a run sends."""
    variables = json.loads(TRAINING_RUN.read_text())["templating"]["list"]
    queries = {one["name"]: one["definition"] for one in variables if one["type"] == "query"}

    assert queries.keys() == {"run", "rank"}
    for query in queries.values():
        assert query.startswith(f"label_values({names.RUN_START_TIME.prometheus}")


def test_exemplars_lead_to_traces():
    """A point of the step time opens its trace in the provisioned Jaeger."""
    by_type = {one["type"]: one for one in DATASOURCES}
    [link] = by_type["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    [panel] = [panel for panel in panels() if panel["title"] == "Step time"]

    assert link["name"] == "trace_id"
    assert link["datasourceUid"] == by_type["jaeger"]["uid"]
    assert any(target.get("exemplar") for target in panel["targets"])


def test_run_rank_and_host_are_labels():
    """What runs are told apart by is on every series, not only beside them."""
    assert {"ml_run_name", "ml_distributed_rank", "host_name", "service_name"} <= PROMOTED
    assert PROMETHEUS["otlp"]["keep_identifying_resource_attributes"] is True
