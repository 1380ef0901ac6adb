"""How do the operators and kernels of a section look below it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.report.kernel_names import short_names
from otel_mlperf.report.lines import Line, left
from otel_mlperf.report.quantities import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.profiles.section_operators import Operator, Place

_MOST: Final[dict[Place, int]] = {"here": 4, "beside": 2, "device": 2}
"""Names that are shown of those on each place."""
_ALONE: Final = 8
"""Of those of one place, where nothing was elsewhere."""
_LEAST: Final = 0.01
_WORDS: Final[dict[Place, str]] = {
    "here": "",
    "beside": "  on other threads",
    "device": "  on the device",
}
_TIME: Final = 10
LEGEND: Final = "operators by name, each with its own time: a part of the self time above them"


def operator_lines(found: Sequence[Operator], self_ns: int, indent: int, width: int) -> list[Line]:
    """The largest of each place, and the rest of them added up.

    Those on the section's thread are a part of its ``self_ns``; what is left was in no operator.
    """
    lines: list[Line] = []
    for place, few in _MOST.items():
        mine = [one for one in found if one.place == place]
        most = _ALONE if len(mine) == len(found) else few
        rows = _rows(mine, most if len(mine) > most + 1 else len(mine), width - indent)
        own = self_ns - sum(operator.self_ns for operator in mine)
        if mine and place == "here" and own >= _LEAST * self_ns > 0:
            rows.append(("not in an operator", own))
        lines += [_line(name, ns, place, indent, width) for name, ns in rows]
    return lines


def _rows(mine: Sequence[Operator], most: int, room: int) -> list[tuple[str, int]]:
    counts = [f" ×{operator.count:,}" if operator.count > 1 else "" for operator in mine[:most]]
    names = short_names([one.name for one in mine[:most]], room - max(map(len, counts), default=0))
    rows = [
        (name + count, one.self_ns) for one, name, count in zip(mine, names, counts, strict=False)
    ]
    if rest := mine[most:]:
        rows.append((f"{len(rest):,} more", sum(one.self_ns for one in rest)))
    return rows


def _line(name: str, ns: int, place: Place, indent: int, width: int) -> Line:
    time = f"{duration(ns):>{_TIME}}"
    columns = f"{'':{_TIME}}{time}" if place == "here" else f"{time}{'':{_TIME}}"
    text = f"  {' ' * indent}{left(name, width - indent)}{columns}"
    return [(f"{text}{_WORDS[place]}", "dim")]
