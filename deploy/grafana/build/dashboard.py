"""What do all dashboards have in common: variables, annotations and links to each other?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from panels import DATASOURCE, Row, arranged
from promql import OF_RUN, WINDOW, label, rate, series, where

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.names import Metric

_TAG: Final = "otel-mlperf"
_ON_TIME_CHANGE: Final = 2
_QUERY_RESULT: Final = 3
_LABEL_VALUES: Final = 1
_HIDDEN: Final = 2
_KEPT: Final = "${__url_time_range}&${datasource:queryparam}&${run:queryparam}&${id:queryparam}"


class Dashboard(NamedTuple):
    """One dashboard: what it is called, answers, lets choose and shows."""

    name: str
    title: str
    question: str
    variables: tuple[dict[str, Any], ...]
    rows: tuple[Row, ...]
    compares: bool = False
    """Whether several runs may be chosen: then every line is of one of them."""

    def json(self) -> dict[str, Any]:
        """As Grafana reads it."""
        run, run_id = (_several(_RUN, first=True), _several(_ID)) if self.compares else (_RUN, _ID)
        found = {
            "uid": uid(self.name),
            "title": self.title,
            "description": self.question,
            "tags": [_TAG],
            "schemaVersion": 41,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "15s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "links": [_LINKS],
            "annotations": {"list": list(_ANNOTATIONS)},
            "templating": {"list": [_DATASOURCE, run, run_id, _INSTANCE, *self.variables]},
            "panels": arranged(self.rows),
        }
        return _of_several(found) if self.compares else found


def _several(variable: dict[str, Any], *, first: bool = False) -> dict[str, Any]:
    """A variable with several values; at first all of them, or the first alone."""
    if first:
        return variable | {"multi": True}
    every = {"text": ["All"], "value": ["$__all"]}
    return variable | {"multi": True, "includeAll": True, "allValue": ".*", "current": every}


def _of_several(part: Any) -> Any:
    """The same for any of the chosen runs, which Grafana fills in as a regular expression."""
    if isinstance(part, dict):
        return {key: _of_several(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_of_several(value) for value in part]
    return re.sub(r'(?<==)(?="\$(run|id)")', "~", part) if isinstance(part, str) else part


def uid(name: str) -> str:
    """The address of a dashboard in Grafana."""
    return f"otel-mlperf-{name}"


def to(name: str, title: str) -> tuple[str, str]:
    """A panel's link to another dashboard, of the same run and time."""
    return title, f"/d/{uid(name)}?{_KEPT}"


def _chosen(name: str, shown: str, metric: Metric, attribute: str) -> dict[str, Any]:
    """A variable with the values of a label, several at once; all of them at first."""
    query = f"label_values({metric.prometheus}{{{OF_RUN}}}, {label(attribute)})"
    return _variable(name, shown, query, _LABEL_VALUES) | {
        "sort": 3,  # numbers by their value
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _variable(name: str, shown: str, query: str, kind: int) -> dict[str, Any]:
    return {
        "name": name,
        "label": shown,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name, "qryType": kind},
        "refresh": _ON_TIME_CHANGE,
        "sort": 0,
        "hide": 0,
        "skipUrlSync": False,
        "options": [],
        "multi": False,
        "includeAll": False,
        "current": {},
    }


_START: Final = names.RUN_START_TIME.prometheus
_NEWEST: Final = f"sort_desc(max by ({label(names.RUN_NAME)}) (last_over_time({_START}[$__range])))"
_RUN: Final = _variable("run", "Run", f"query_result({_NEWEST})", _QUERY_RESULT) | {
    "regex": f'/{label(names.RUN_NAME)}="([^"]+)"/',
}
# Ids are no labels of the series: they would make longer every one of them. Prometheus keeps them
# in one series of each process, which leads from a run's id to its processes.
_NAME: Final = f'{label(names.RUN_NAME)}="$run"'
_RUN_ID: Final = label(names.RUN_ID)
_IDS: Final = (
    f"max by (job, instance, {_RUN_ID}) (last_over_time(target_info{{{_NAME}}}[$__range]))"
)
_STARTS: Final = f"last_over_time({_START}{{{_NAME}}}[$__range])"
_OF_IDS: Final = f"{_STARTS} * on (job, instance) group_left ({_RUN_ID}) {_IDS}"
_NEWEST_ID: Final = f"sort_desc(max by ({_RUN_ID}) ({_OF_IDS}))"
_ID: Final = _variable("id", "Run id", f"query_result({_NEWEST_ID})", _QUERY_RESULT) | {
    "regex": f'/{_RUN_ID}="(?<value>(?<text>[^"]{{1,8}})[^"]*)"/',
}
_PROCESSES: Final = f'label_values(target_info{{{_NAME},{_RUN_ID}="$id"}}, instance)'
_INSTANCE: Final = _variable("instance", "Process", _PROCESSES, _LABEL_VALUES) | {
    "hide": _HIDDEN,
    "skipUrlSync": True,  # there may be thousands
    "multi": True,
    "includeAll": True,
    "current": {"text": ["All"], "value": ["$__all"]},
}
RANK: Final = _chosen("rank", "Rank", names.RUN_START_TIME, names.RANK)
HOST: Final = _chosen("host", "Host", names.RUN_START_TIME, names.HOST_NAME)
GPU: Final = _chosen("gpu", "GPU", names.GPU_MEMORY_LIMIT, names.HW_NAME)


def _source(name: str, shown: str, kind: str) -> dict[str, Any]:
    """A variable with the data sources of one kind; the provisioned one at first."""
    return {
        "name": name,
        "label": shown,
        "type": "datasource",
        "query": kind,
        "current": {"text": kind.capitalize(), "value": kind},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }


_DATASOURCE: Final = _source("datasource", "Data source", "prometheus")
TRACES: Final = _source("traces", "Trace source", "jaeger")
_SERVICES: Final = f"label_values({_START}{{{_NAME}}}, {label(names.SERVICE_NAME)})"
SERVICE: Final = _variable("service", "Service", _SERVICES, _LABEL_VALUES) | {"hide": _HIDDEN}


def _annotation(name: str, color: str, expr: str, text: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "target": {"refId": "Anno", "datasource": DATASOURCE, "expr": expr, "interval": "15s"},
        "titleFormat": name,
        "textFormat": text,
        **more,
    }


_CHECKPOINTS: Final = series(
    names.SECTION_DURATION, where(SECTION_CATEGORY=names.CHECKPOINT), every_rank=True
)
_OTHER_STEPS: Final = rate(names.STEPS, where(ML_PHASE=f"!{names.TRAIN}"), every_rank=True)
_ANNOTATIONS: Final = (
    _annotation(
        "Start or restart",
        "blue",
        # The newest of all ranks; in milliseconds, as the value is taken for the time.
        f"max({series(names.RUN_START_TIME, every_rank=True)}) * 1000",
        "A process of the run started.",
        useValueForTime=True,
    ),
    _annotation(
        "Checkpoint",
        "purple",
        f"sum(histogram_count(increase({_CHECKPOINTS}[{WINDOW}]))) > 0",
        "A checkpoint was written or read.",
    ),
    _annotation(
        "Validation",
        "orange",
        f"sum({_OTHER_STEPS}) > 0",
        "Steps of a phase other than train, e.g. validate.",
    ),
)
_LINKS: Final = {
    "title": "otel_mlperf",
    "type": "dashboards",
    "tags": [_TAG],
    "asDropdown": True,
    "icon": "external link",
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "tooltip": "Other dashboards for the same run and time range",
    "url": "",
}
