"""The dashboards query what the package sends, and people can read them."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from servers.dashboard import (
    COMPARES,
    DASHBOARDS,
    METRICS,
    annotations,
    dashboard_queries,
    every_query,
    labels_of,
    panels,
    selectors,
)
from servers.running import DEPLOY

from otel_mlperf import names

PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
DATASOURCES = yaml.safe_load(
    (DEPLOY / "grafana" / "provisioning" / "datasources" / "stack.yaml").read_text()
)["datasources"]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())

PROMOTED = {name.replace(".", "_") for name in PROMETHEUS["otlp"]["promote_resource_attributes"]}
ON_EVERY_SERIES = PROMOTED | {"job", "instance"}
OF_A_NODE = (
    "system_",
    "linux_load",
    "linux_psi_",
    "otel_mlperf_items",
    "otel_mlperf_sampler_",
    "otel_mlperf_agent_",
)
"""How metrics begin that belong to no rank."""
OF_ALL_RANKS = {"Steps behind"}
"""Panels that compare the chosen ranks with all."""
NOT_IN_THE_SCHEMA = {"definition", "target", "titleFormat", "textFormat", "useValueForTime"}
"""What Grafana's own Prometheus plugin reads and writes, and its schema does not have."""

each_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
each_query = pytest.mark.parametrize(
    "query", every_query("any-run"), ids=lambda query: f"{query.dashboard}-{query.panel}"
)


def read(path):
    return json.loads(path.read_text())


def difference(wanted, found, place=""):
    """Where ``found`` lacks something of ``wanted``, or has something else."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            if key not in NOT_IN_THE_SCHEMA:
                yield from difference(value, found.get(key, "nothing"), f"{place}/{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for number, pair in enumerate(zip(wanted, found, strict=True)):
            yield from difference(*pair, f"{place}/{number}")
    elif wanted != found:
        yield f"{place}: {wanted!r}, read as {found!r}"


def test_files_are_what_their_sources_make(tmp_path):
    """Nobody has edited a dashboard by hand, or its source without building it."""
    subprocess.run([sys.executable, DEPLOY / "grafana" / "build", tmp_path], check=True)

    assert [path.name for path in sorted(tmp_path.iterdir())] == [one.name for one in DASHBOARDS]
    for path in DASHBOARDS:
        assert (tmp_path / path.name).read_text() == path.read_text(), (
            "run: python deploy/grafana/build"
        )


@each_dashboard
def test_grafana_knows_every_field(path):
    """Read by Grafana's own schema and written again, nothing is missing."""
    register_default_plugins()
    wanted = read(path)

    found = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(wanted)))
    assert list(difference(wanted, found)) == []


@each_query
def test_queries_name_metrics_that_are_sent(query):
    """Every metric of a query is one that the package makes, with labels that it carries."""
    found = selectors(query.expr)

    assert found
    for name, labels in found:
        assert labels <= labels_of(name) | ON_EVERY_SERIES


@each_query
def test_groupings_are_by_labels_that_exist(query):
    """What a query groups by, and what its legend shows, is a label of its metrics."""
    groups = re.findall(r"\b(?:by|ignoring)\s*\(([^)]*)\)", query.expr)
    used = {label.strip() for group in groups for label in group.split(",")}
    used |= set(re.findall(r"{{(\w+)}}", query.legend))
    carried = {label for name, _ in selectors(query.expr) for label in labels_of(name)}
    made = set(re.findall(r', "(\w+)", "\$1"', query.expr))

    assert used <= carried | PROMOTED | made | {"job", "instance"}


@each_query
def test_queries_are_of_the_chosen_run(query):
    """No panel takes in others; ranks are chosen in what a rank sends, not in what a node does."""
    for name, by in selectors(query.expr):
        assert {"ml_run_name", "instance"} <= by
        if query.panel not in OF_ALL_RANKS:
            assert ("ml_distributed_rank" in by) != name.startswith(OF_A_NODE)


@each_dashboard
def test_annotations_are_of_the_run(path):
    """Restarts, checkpoints and validation are marked from metrics that are sent."""
    found = annotations("any-run", path=path)

    assert len(found) == 3
    for expr in found:
        ((name, labels),) = selectors(expr)
        assert "ml_run_name" in labels <= labels_of(name) | ON_EVERY_SERIES


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
def test_panels_say_what_they_answer_and_where_to_look_next(path):
    """A description is a question and what to do, rows are few words, and there is a link."""
    for panel in panels(path):
        if panel["type"] == "row":
            continue
        question, _, advice = panel["description"].partition("? ")
        assert re.match(r"[A-Z][^.]*$", question), panel["title"]
        assert len(advice) > 20, panel["title"]
        assert panel["links"], panel["title"]


@each_dashboard
def test_links_lead_somewhere(path):
    """A link within Grafana is to a dashboard that is shipped, and keeps run and time."""
    uids = {read(one)["uid"] for one in DASHBOARDS}
    for panel in panels(path):
        for link in panel.get("links", []):
            inside = re.match(r"/d/([\w-]+)\?(.*)", link["url"])
            assert inside or link["url"].startswith("https://")
            if inside:
                assert inside[1] in uids
                assert {"${run:queryparam}", "${id:queryparam}"} <= set(inside[2].split("&"))
                assert "${__url_time_range}" in inside[2]


@each_dashboard
def test_data_sources_are_chosen_by_variable(path):
    """Nothing in a dashboard is bound to one Grafana's data source."""
    dashboard = read(path)
    variables = dashboard["templating"]["list"]
    chosen = {one["query"]: one["name"] for one in variables if one["type"] == "datasource"}
    owners = [
        *(target for panel in panels(path) for target in panel.get("targets", [])),
        *(panel for panel in panels(path) if panel["type"] != "row"),
        *(one for one in variables if one["type"] == "query"),
        *dashboard["annotations"]["list"],
    ]

    assert variables[0]["name"] == "datasource"
    for source in (owner["datasource"] for owner in owners):
        assert source["uid"] == f"${{{chosen[source['type']]}}}"


@each_dashboard
def test_variables_list_what_is_there(path):
    """Values come from metrics that are sent, and each variable that a query has is there."""
    variables = read(path)["templating"]["list"]
    asked = {one["name"]: one["query"]["query"] for one in variables if one["type"] == "query"}
    targets = [target for panel in panels(path) for target in panel.get("targets", [])]
    used = {name for one in targets for name in re.findall(r"\$([a-z]+)\b", json.dumps(one))}

    assert used <= asked.keys()
    assert {"run", "id", "instance", "rank"} <= asked.keys()
    for query in asked.values():
        assert set(re.findall(r"\b(?:ml|hw)_\w+(?=[\[{])", query)) <= METRICS.keys()


@each_dashboard
def test_the_newest_run_comes_first(path):
    """The list of runs is in the order of their starts, as the query gives it."""
    (run,) = (one for one in read(path)["templating"]["list"] if one["name"] == "run")

    start = names.RUN_START_TIME.prometheus
    newest = f"sort_desc(max by (ml_run_name) (last_over_time({start}[$__range])))"
    assert run["query"]["query"] == f"query_result({newest})"
    assert run["sort"] == 0
    shown = f'{{ml_run_name="digits"}} 1795276031.4 {1795276031000}'
    assert re.search(run["regex"].strip("/"), shown)[1] == "digits"


@each_dashboard
def test_runs_of_one_name_are_told_apart_by_their_ids(path):
    """The newest is chosen, shown by eight characters; its processes are chosen unseen."""
    listed = read(path)["templating"]["list"]
    order = [one["name"] for one in listed]
    (chosen, processes) = (one for one in listed if one["name"] in ("id", "instance"))

    assert order[:4] == ["datasource", "run", "id", "instance"]
    assert "sort_desc(" in chosen["query"]["query"]
    assert chosen["includeAll"] == (path == COMPARES)
    pattern = chosen["regex"].strip("/").replace("(?<", "(?P<")
    for run_id, short in (("0123456789abcdef", "01234567"), ("7.0", "7.0")):
        match = re.search(pattern, f'{{ml_run_id="{run_id}"}} 1795276031.4 1795276031000')
        assert (match["value"], match["text"]) == (run_id, short)
    is_any = "=~" if path == COMPARES else "="
    assert f'ml_run_id{is_any}"$id"' in processes["query"]["query"]
    assert (processes["hide"], processes["skipUrlSync"]) == (2, True)
    assert "allValue" not in processes  # all of the run, not all there are


def test_several_runs_are_compared_line_by_line():
    """On one dashboard: every line is of one run, by its name and id, whatever is added up."""
    (run,) = (one for one in read(COMPARES)["templating"]["list"] if one["name"] == "run")
    queries = dashboard_queries("(one|other)", path=COMPARES)

    assert run["multi"]
    assert queries
    for query in queries:
        assert "{{ml_run_name}} {{ml_run_id}}" in query.legend
        assert 'ml_run_name="' not in query.expr
        outer = re.search(r"(?:sum|avg) by \(([^)]*)\)", query.expr)[1]
        assert {"ml_run_name", "ml_run_id"} <= set(outer.split(", "))
    others = [read(path) for path in DASHBOARDS if path != COMPARES]
    listed = [one for other in others for one in other["templating"]["list"]]
    assert not any(one["multi"] for one in listed if one["name"] == "run")


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


def test_grafana_opens_on_a_dashboard_that_is_there():
    """The home dashboard is one of those that are mounted."""
    home = COMPOSE["services"]["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ]

    assert home.rpartition("/")[2] in {path.name for path in DASHBOARDS}
