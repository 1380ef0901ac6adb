"""How does what a run's time went into look on a terminal?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.summary.goodput_shapes import PRODUCTIVE
from otel_mlperf.report.lines import LABEL, Line, labelled_lines, wrapped
from otel_mlperf.report.quantities import duration, percent, plural

if TYPE_CHECKING:
    from otel_mlperf.analysis.summary.goodput_shapes import Ledger

_LEAST: Final = 0.005
"""Shares below it are left out."""


def goodput_lines(ledger: Ledger | None, width: int) -> list[Line]:
    """The share of the productive time, then all kinds, the largest first."""
    total = 0 if ledger is None else sum(ledger.spent_ns.values())
    if ledger is None or not total or not any(ledger.spent_ns[kind] for kind in PRODUCTIVE):
        return []
    by_size = sorted(ledger.spent_ns.items(), key=lambda item: -item[1])
    told = [f"{kind} {percent(ns / total)}" for kind, ns in by_size if ns >= _LEAST * total]
    if ledger.lost_steps:
        told.append(plural(ledger.lost_steps, "step") + " lost")
    head = f"{percent(ledger.goodput)} of {duration(ledger.wall_ns)}: "
    return labelled_lines("goodput", wrapped(head, told, width - LABEL))
