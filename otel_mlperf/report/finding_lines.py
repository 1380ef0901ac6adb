"""Terminal rendering of findings, and of the checks that ``doctor`` makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.findings.finding_table import row_of
from otel_mlperf.quantities import duration, figures, percent, plural, size
from otel_mlperf.terminal_lines import (
    LABEL,
    WIDTH,
    Line,
    broken,
    columns,
    labelled_lines,
    left,
    short,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.findings.finding import Check, Finding, FindingList, Gain, Severity
    from otel_mlperf.terminal_lines import Style

_MAX_SHOWN: Final = 3
_GAIN_OF: Final = {"step": "the step time", "run": "the run", "memory": "the memory"}
_STYLES: Final[dict[Severity, Style]] = {"critical": "red", "warning": "yellow", "info": ""}
_LEVELS: Final[dict[str, Style]] = {"FAIL": "red", "warn": "yellow", "ok": "green"}
_NAME_WIDTH: Final = 16
_MAX_NAME_WIDTH: Final = 32
_LONGEST: Final = 400
_MIN_RESULT_WIDTH: Final = 24
"""Minimum columns for the result of a check, even if the terminal is too narrow for it."""


def finding_lines(
    findings: Sequence[Finding], short_id: str, width: int, *, ranks: int = 1
) -> list[Line]:
    """Return lines on the first three findings: problem, possible saving and action.

    If there are more findings, a last line contains their number and the command that lists them.
    ``ranks`` is the run's number of ranks.
    """
    lines: list[Line] = []
    room = width - LABEL
    for finding in findings[:_MAX_SHOWN]:
        label = "" if lines else "findings"
        problem = broken(finding_text(finding, ranks=ranks), room)
        lines += labelled_lines(label, problem, _STYLES[finding.severity])
        lines += labelled_lines("", broken(finding.action, room))
    if (more := len(findings) - _MAX_SHOWN) > 0:
        rest = f"{plural(more, 'more finding')}: otel-mlperf findings {short_id}"
        lines.append([(" " * LABEL + rest, "dim")])
    return lines


def render_findings(
    answer: FindingList,
    *,
    ranks: int = 1,
    width: int = WIDTH,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """Render all findings: the problem, its evidence, the action, and a command for details.

    Below the findings, data that could not be evaluated is listed, because a run without findings
    might otherwise appear to have no problems. ``ranks`` is the run's number of ranks.
    """
    lines: list[Line] = []
    for finding in answer.findings:
        lines += _whole(finding, width, ranks)
    if not lines:
        none = f"run {answer.short_id}: nothing found"
        in_part = f"{none} in what is stored"
        lines.append([(in_part, "yellow")] if answer.missing else [(none, "green")])
    for missing in answer.missing:
        lines += labelled_lines("", broken(missing, width - LABEL), "yellow")
    return text(lines, color=color, unicode=unicode)


def _whole(finding: Finding, width: int, ranks: int) -> list[Line]:
    room = width - LABEL
    problem, *more = broken(finding_text(finding, ranks=ranks), room)
    style = _STYLES[finding.severity]
    lines: list[Line] = [[(left(finding.severity, LABEL), style), (problem, style)]]
    lines += labelled_lines("", more, style)
    lines += labelled_lines("", broken(finding.action, room))
    values = dict(sorted(finding.evidence.items()))
    over = f" over {duration(values.pop('over_ns'))}" if "over_ns" in values else ""
    numbers = ", ".join(_evidence(*item) for item in values.items())
    evidence = f"{finding.id} · evidence{over}: {numbers}" if numbers else finding.id
    lines += [[(" " * LABEL + part, "dim")] for part in broken(evidence, room)]
    if finding.command:
        lines.append([(" " * LABEL + f"→ details: {finding.command}", "bold")])
    return lines


def _evidence(name: str, value: float) -> str:
    words = name.replace("_", " ")
    if name.endswith("_ns"):
        return f"{words.removesuffix(' ns')} {duration(value)}"
    if name.endswith("_bytes"):
        return f"{words.removesuffix(' bytes')} {size(value, 1024)}"
    is_share = name == "share" or name.endswith("_share")
    return f"{words} {percent(value) if is_share else figures(value)}"


def finding_text(finding: Finding, *, ranks: int = 1) -> str:
    """Return a finding's problem, possible saving and first warning in one line.

    The line includes the finding's rank if ``ranks``, the run's number of ranks, is above 1.
    """
    problem, rank = finding.summary.replace("%", " %"), finding.where.rank
    if ranks > 1 and rank is not None and f"rank {rank}" not in problem:
        problem = f"rank {rank}: {problem}"
    more = [_gain(finding.gain)] if finding.gain else []
    return " · ".join([problem, *more, *_warned(finding)])


def _warned(finding: Finding) -> list[str]:
    """Return a text on the first live warning and the number of later ones; empty without any."""
    if not finding.warned:
        return []
    first, more = finding.warned[0], len(finding.warned) - 1
    steps = ""
    if first.steps:
        begin, end = first.steps
        steps = f" (step {begin})" if begin == end else f" (steps {begin}–{end})"
    lasted = f" for {duration(first.held_ns)}" if first.held_ns else ""
    again = f", and {plural(more, 'time')} more" if more else ""
    limit = row_of(finding.id).format_value(first.threshold)
    return [
        f"warned after {duration(first.after_ns)}{steps}{lasted}{again}"
        + (f", limit {limit}" if limit else "")
    ]


def _gain(gain: Gain) -> str:
    of = f" of {_GAIN_OF[gain.of]}"
    if not round(100 * gain.low):
        return f"could save up to {percent(gain.high)}{of}"
    low = f"{gain.low * 100:.0f}–" if round(100 * (gain.high - gain.low)) else ""
    return f"could save {low}{percent(gain.high)}{of}"


def render_checks(
    checks: Sequence[Check], *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Render one line per check; a result that does not fit is continued on further lines."""
    longest = max((columns(check.what) for check in checks), default=0)
    name_width = min(max(_NAME_WIDTH, longest + 2), _MAX_NAME_WIDTH)
    lines = [line for check in checks for line in _check(check, name_width, width)]
    return text(lines, color=color, unicode=unicode)


def _check(check: Check, name_width: int, width: int) -> list[Line]:
    line: Line = [
        (f"{check.level:<6}", _LEVELS[check.level]),
        (
            left(short(check.what, name_width - 2), name_width),
            "bold" if check.level == "FAIL" else "",
        ),
    ]
    taken = sum(columns(part) for part, _ in line)
    found, *more = broken(check.found, max(_MIN_RESULT_WIDTH, width - taken)) or [""]
    lines: list[Line] = [[*line, (found, "")]]
    lines += [[(" " * taken + part, "")] for part in more]
    if check.do:
        do = f"→ {short(check.do, _LONGEST)}"
        last = lines[-1]
        # Commands are never wrapped, so that they can be copied.
        if sum(columns(part) for part, _ in last) + 1 + columns(do) <= width:
            last.append((f" {do}", "bold"))
        else:
            lines.append([(" " * taken + do, "bold")])
    return lines
