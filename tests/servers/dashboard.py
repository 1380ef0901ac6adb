"""Which queries does the shipped dashboard ask, with its variables filled in?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from servers.running import DEPLOY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRAINING_RUN = DEPLOY / "grafana" / "dashboards" / "training-run.json"


class Query(NamedTuple):
    """One query of one panel."""

    panel: str
    legend: str
    expr: str


def panels(path: Path = TRAINING_RUN) -> Iterator[dict[str, Any]]:
    """Every panel of a dashboard, those inside collapsed rows included."""
    for panel in json.loads(path.read_text())["panels"]:
        yield panel
        yield from panel.get("panels", [])


def dashboard_queries(
    run: str, rank: str = ".*", span: str = "1m", path: Path = TRAINING_RUN
) -> list[Query]:
    """Every query of a dashboard as Grafana would send it.

    Args:
        run: The run's name.
        rank: A regular expression of ranks; the default is what "All" means.
        span: The length of every window, as a PromQL duration.
        path: The dashboard's file.
    """
    values = {"$run": run, "$rank": rank, "$__rate_interval": span, "$__range": span}
    return [
        Query(panel["title"], target["legendFormat"], _filled(target["expr"], values))
        for panel in panels(path)
        for target in panel.get("targets", [])
    ]


def _filled(expr: str, values: dict[str, str]) -> str:
    for variable, value in values.items():
        expr = expr.replace(variable, value)
    return expr
