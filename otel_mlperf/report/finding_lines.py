"""How do findings and the checks of ``doctor`` look on a terminal?"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from otel_mlperf.report.lines import LABEL, Line, left, short, text
from otel_mlperf.report.quantities import percent, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.findings.check import Check
    from otel_mlperf.findings.finding import Finding, Gain, Severity
    from otel_mlperf.report.lines import Style

_MOST: Final = 3
_STYLES: Final[dict[Severity, Style]] = {"critical": "red", "warning": "yellow", "info": ""}
_LEVELS: Final[dict[str, Style]] = {"FAIL": "red", "warn": "yellow", "ok": "green"}
_WHAT: Final = 16
_LONGEST: Final = 400


def finding_lines(findings: Sequence[Finding], short_id: str, width: int) -> list[Line]:
    """The first few, worst first: what is the case and what is won, then what to do."""
    lines: list[Line] = []
    room = width - LABEL
    for finding in findings[:_MOST]:
        label = "" if lines else "findings"
        said: Line = [(short(finding_text(finding), room), _STYLES[finding.severity])]
        lines.append([(f"{label:<{LABEL}}", "dim"), *said])
        lines += [
            [(" " * LABEL + short(part, room), "")] for part in textwrap.wrap(finding.action, room)
        ]
    if (more := len(findings) - _MOST) > 0:
        told = f"{plural(more, 'more finding')}: otel-mlperf doctor {short_id}"
        lines.append([(" " * LABEL + told, "dim")])
    return lines


def finding_text(finding: Finding) -> str:
    """What is the case, and what would be won, on one line."""
    said = finding.summary.replace("%", " %")
    return f"{said} · {_gain(finding.gain)}" if finding.gain else said


def _gain(gain: Gain) -> str:
    low = f"{gain.low * 100:.0f}–" if round(100 * (gain.high - gain.low)) else ""
    return f"to win: {low}{percent(gain.high)}"


def render_checks(checks: Sequence[Check], *, color: bool = False, unicode: bool = True) -> str:
    """One line for each check; a command to type is worth more than a straight margin."""
    return text(map(_check, checks), color=color, unicode=unicode)


def _check(check: Check) -> Line:
    line: Line = [
        (f"{check.level:<6}", _LEVELS[check.level]),
        (left(check.what, _WHAT), "bold" if check.level == "FAIL" else ""),
        (short(check.found, _LONGEST), ""),
    ]
    return [*line, (f" → {short(check.do, _LONGEST)}", "bold")] if check.do else line
