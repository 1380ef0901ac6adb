"""How do checks look on a terminal?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.report.lines import Line, left, short, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.findings.check import Check
    from otel_mlperf.report.lines import Style

_STYLES: dict[str, Style] = {"FAIL": "red", "warn": "yellow", "ok": "green"}
_WHAT = 16
_LONGEST = 400


def render_checks(checks: Sequence[Check], *, color: bool = False, unicode: bool = True) -> str:
    """One line for each check; a command to type is worth more than a straight margin."""
    return text(map(_line, checks), color=color, unicode=unicode)


def _line(check: Check) -> Line:
    line: Line = [
        (f"{check.level:<6}", _STYLES[check.level]),
        (left(check.what, _WHAT), "bold" if check.level == "FAIL" else ""),
        (short(check.found, _LONGEST), ""),
    ]
    return [*line, (f" → {short(check.do, _LONGEST)}", "bold")] if check.do else line
