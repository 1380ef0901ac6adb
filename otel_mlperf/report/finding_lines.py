"""How do findings and the checks of ``doctor`` look on a terminal?"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from otel_mlperf.report.lines import LABEL, Line, columns, labelled_lines, left, short, text
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
_WIDEST_WHAT: Final = 32
_LONGEST: Final = 400


def finding_lines(
    findings: Sequence[Finding], short_id: str, width: int, *, ranks: int = 1
) -> list[Line]:
    """The first few, worst first: what is the case and what could be saved, then what to do."""
    lines: list[Line] = []
    room = width - LABEL
    for finding in findings[:_MOST]:
        label = "" if lines else "findings"
        said = _broken(finding_text(finding, ranks=ranks), room)
        lines += labelled_lines(label, said, _STYLES[finding.severity])
        lines += labelled_lines("", _broken(finding.action, room))
    if (more := len(findings) - _MOST) > 0:
        told = f"{plural(more, 'more finding')}: otel-mlperf doctor {short_id}"
        lines.append([(" " * LABEL + told, "dim")])
    return lines


def finding_text(finding: Finding, *, ranks: int = 1) -> str:
    """What is the case, and what could be saved, on one line; of a run of so many ranks."""
    said, rank = finding.summary.replace("%", " %"), finding.where.rank
    if ranks > 1 and rank is not None and f"rank {rank}" not in said:
        said = f"rank {rank}: {said}"
    return f"{said} · {_gain(finding.gain)}" if finding.gain else said


def _gain(gain: Gain) -> str:
    if not round(100 * gain.low):
        return f"could save up to {percent(gain.high)}"
    low = f"{gain.low * 100:.0f}–" if round(100 * (gain.high - gain.low)) else ""
    return f"could save {low}{percent(gain.high)}"


def _broken(said: str, room: int) -> list[str]:
    # Anybody's words: what is far too long is cut before it is broken, and a line that is still too
    # wide, as wide characters make it, after it.
    return [short(part, room) for part in textwrap.wrap(short(said, _LONGEST), room)]


def render_checks(checks: Sequence[Check], *, color: bool = False, unicode: bool = True) -> str:
    """One line for each check; a command to type is worth more than a straight margin."""
    longest = max((columns(check.what) for check in checks), default=0)
    width = min(max(_WHAT, longest + 2), _WIDEST_WHAT)
    return text((_check(check, width) for check in checks), color=color, unicode=unicode)


def _check(check: Check, width: int) -> Line:
    line: Line = [
        (f"{check.level:<6}", _LEVELS[check.level]),
        (left(short(check.what, width - 2), width), "bold" if check.level == "FAIL" else ""),
        (short(check.found, _LONGEST), ""),
    ]
    return [*line, (f" → {short(check.do, _LONGEST)}", "bold")] if check.do else line
