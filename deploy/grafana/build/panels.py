"""What does a panel look like in Grafana's JSON?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
TRACE_SOURCE: Final = {"type": "jaeger", "uid": "${traces}"}
_COLORS: Final = ("green", "yellow", "red")
_WIDTH: Final = 24


@dataclass(frozen=True)
class Query:
    """One query of a panel."""

    expr: str
    legend: str
    exemplars: bool = False
    dashed: bool = False
    """Drawn as a limit: dashed and without an area."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel; its description begins with its question and says what to do when it is red."""

    kind: str
    title: str
    question: str
    queries: tuple[Query, ...]
    unit: str = "short"
    limits: tuple[float, ...] = ()
    """Where it turns yellow and red; one number: red."""
    falls: bool = False
    """Whether small values are the bad ones: ``limits`` are then where red and yellow end."""
    none: str = ""
    """Why there may be nothing to show."""
    link: tuple[str, str] = ("", "")
    """Title and address of where to look next."""
    width: int = 12
    height: int = 8
    stacked: bool = False
    most: float | None = None
    decimals: int | None = None
    columns: dict[str, str] = field(default_factory=dict)
    """Of a table: labels to headings."""

    def json(self, number: int, at: tuple[int, int]) -> dict[str, Any]:
        """The panel at column and line ``at``."""
        x, y = at
        found: dict[str, Any] = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.question,
            "datasource": DATASOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [self._target(*one) for one in enumerate(self.queries)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": self._overrides()},
            "options": _OPTIONS[self.kind],
        }
        if self.link[0]:
            found["links"] = [_link(*self.link)]
        if self.kind == "table":
            found["transformations"] = self._arranged()
        return found

    @property
    def is_instant(self) -> bool:
        """Whether it shows now and not a course."""
        return self.kind != "timeseries"

    def _target(self, place: int, query: Query) -> dict[str, Any]:
        found: dict[str, Any] = {
            "refId": chr(ord("A") + place),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend,
            "range": not self.is_instant,
            "instant": self.is_instant,
        }
        if query.exemplars:
            found["exemplar"] = True
        if self.kind == "table":
            found["format"] = "table"
        return found

    def _defaults(self) -> dict[str, Any]:
        colored = bool(self.limits)
        found: dict[str, Any] = {
            "unit": self.unit,
            "thresholds": {"mode": "absolute", "steps": self._steps()},
            "color": {"mode": "thresholds" if colored and self.is_instant else "palette-classic"},
        }
        if self.kind == "stat" and not colored:
            found["color"] = {"mode": "fixed", "fixedColor": "text"}
        if self.none:
            found["noValue"] = self.none
        if self.unit == "percentunit" or self.kind == "bargauge":
            found["min"] = 0
        if self.most is not None:
            found["max"] = self.most
        if self.decimals is not None:
            found["decimals"] = self.decimals
        if self.kind == "timeseries":
            found["custom"] = self._drawn()
        return found

    def _drawn(self) -> dict[str, Any]:
        return {
            "drawStyle": "line",
            "lineWidth": 2,
            "fillOpacity": 60 if self.stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "axisSoftMin": 0,
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if self.limits else "off"},
        }

    def _steps(self) -> list[dict[str, Any]]:
        if not self.limits:
            return [{"color": "green", "value": None}]
        colors = _COLORS if len(self.limits) > 1 else (_COLORS[0], _COLORS[-1])
        colors = colors[::-1] if self.falls else colors
        bounds = (None, *self.limits)
        return [{"color": c, "value": v} for c, v in zip(colors, bounds, strict=True)]

    def _overrides(self) -> list[dict[str, Any]]:
        return [
            {
                "matcher": {"id": "byFrameRefID", "options": chr(ord("A") + place)},
                "properties": [
                    {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
                    {"id": "custom.fillOpacity", "value": 0},
                    {"id": "custom.stacking", "value": {"mode": "none", "group": "B"}},
                ],
            }
            for place, query in enumerate(self.queries)
            if query.dashed
        ]

    def _arranged(self) -> list[dict[str, Any]]:
        order = {name: place for place, name in enumerate(self.columns)}
        options = {
            "excludeByName": {"Time": True},
            "indexByName": order,
            "renameByName": self.columns,
        }
        return [{"id": "organize", "options": options}]


@dataclass(frozen=True, kw_only=True)
class TraceTable:
    """A table of traces that Jaeger finds; a click on one opens it."""

    title: str
    question: str
    service: str
    operation: str
    tags: str
    """Attributes of the span or its process, as ``key=value``, separated by spaces."""
    link: tuple[str, str]
    limit: int = 20
    width: int = 24
    height: int = 8

    def json(self, number: int, at: tuple[int, int]) -> dict[str, Any]:
        """The panel at column and line ``at``."""
        x, y = at
        search = {
            "refId": "A",
            "datasource": TRACE_SOURCE,
            "queryType": "search",
            "service": self.service,
            "operation": self.operation,
            "tags": self.tags,
            "limit": self.limit,
        }
        return {
            "id": number,
            "type": "table",
            "title": self.title,
            "description": self.question,
            "datasource": TRACE_SOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [search],
            "fieldConfig": {
                "defaults": {"noValue": "No matching trace in Jaeger."},
                "overrides": [],
            },
            "options": _OPTIONS["table"],
            "links": [_link(*self.link)],
        }


def _link(title: str, url: str) -> dict[str, Any]:
    return {"title": title, "url": url, "type": "link", "targetBlank": "://" in url}


@dataclass(frozen=True)
class Row:
    """Panels under a common heading."""

    title: str
    panels: tuple[Panel | TraceTable, ...]
    collapsed: bool = False


def arranged(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    """The panels of all rows, from left to right and from top to bottom."""
    found: list[dict[str, Any]] = []
    number = y = 0
    for row in rows:
        number += 1
        heading: dict[str, Any] = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": y},
            "panels": [],
        }
        found.append(heading)
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > _WIDTH:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            below = heading["panels"] if row.collapsed else found
            below.append(panel.json(number, (x, y)))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return found


_LEGEND: Final = {
    "showLegend": True,
    "displayMode": "table",
    "placement": "bottom",
    "calcs": ["mean", "max"],
}
_REDUCED: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {
        "reduceOptions": _REDUCED,
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
        "wideLayout": True,
    },
    "bargauge": {
        "reduceOptions": _REDUCED,
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": True,
        "valueMode": "color",
        "namePlacement": "left",
        "sizing": "auto",
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
}
