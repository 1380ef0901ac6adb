"""What does a summary say below its table?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from otel_mlperf.analysis.run.run_processes import IMPORTED, RUNNING
from otel_mlperf.analysis.steps.step_shares import shown
from otel_mlperf.analysis.summary.logged import GAUGE
from otel_mlperf.journal.journal_folder import ROOM
from otel_mlperf.report.finding_lines import finding_lines
from otel_mlperf.report.lines import LABEL, Line, columns, labelled, labelled_lines, short, wrapped
from otel_mlperf.report.machine_line import machine_lines
from otel_mlperf.report.quantities import duration, parts, percent, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.steps.step_shapes import StepFigures
    from otel_mlperf.analysis.summary.summary_shapes import (
        OutsideShare,
        ProgramSeries,
        Summary,
        Telemetry,
    )

_BETWEEN = " · "
_LEAST_OUTSIDE = 0.01
_LONGEST_NAME = 28
_MOST_RANKS = 3
_MOST_SAID = 8
"""Lines under one label."""
_WHOLE = 1e12
"""Below it, a number without decimals is written with all its digits."""


def closing_lines(summary: Summary) -> list[str]:
    """All of it as plain lines of any length."""
    lines = around_lines(summary, 1000) + telemetry_lines(summary, 1000, ())
    return ["".join(part for part, _ in line).rstrip() for line in lines]


def around_lines(summary: Summary, width: int) -> list[Line]:
    """Findings, ranks, warm-up, outside time, slowest step, machines, the program's own words."""
    lines = finding_lines(summary.findings, summary.short_id, width, ranks=summary.ranks)
    lines += _ranks(summary.steps, width) if summary.steps else []
    for aggregate in summary.aggregates[:5]:
        mean = duration(aggregate.sum_ns / max(1, aggregate.count))
        where = f" in {shown(aggregate.enclosing)}" if aggregate.enclosing else ""
        where = " in child processes" if aggregate.beside else where
        total = f"{aggregate.name} ×{aggregate.count:,}: {duration(aggregate.sum_ns)}"
        line = f"{total}{where}, mean {mean}"
        lines.append(labelled("added up", short(line, width - LABEL)))
    if summary.warm_up:
        line = f"step {summary.warm_up.number}: {duration(summary.warm_up.duration_ns)}"
        lines.append(labelled("warm-up", f"{line} (not in the figures above)"))
    if summary.outside:
        lines += labelled_lines("outside", _outside(summary, width - LABEL)[:2])
    lines += [*_beside(summary, width), *_slowest(summary, width), *machine_lines(summary, width)]
    return [*lines, *_profiled(summary, width), *_said(summary, width)]


def _ranks(steps: StepFigures, width: int) -> list[Line]:
    """The ranks that take far longer than the others, and in what."""
    lines = []
    for stand_out in steps.stand_outs[:_MOST_RANKS]:
        more = ", ".join(f"{name} +{duration(ns)}" for name, ns in stand_out.more_ns.items())
        lines.append(short(f"rank {stand_out.rank}: {more}", width - LABEL))
    return labelled_lines("ranks", lines)


def _beside(summary: Summary, width: int) -> list[Line]:
    if not summary.beside:
        return []
    told = ", ".join(
        f"{short(part.name, _LONGEST_NAME)} {duration(part.sum_ns)} ×{part.count:,}"
        for part in summary.beside
    )
    return [labelled("beside", short(told, width - LABEL))]


def _slowest(summary: Summary, width: int) -> list[Line]:
    slow = summary.slowest
    if slow is None:
        return []
    rank = f" on rank {slow.rank}" if summary.ranks > 1 else ""
    what = f"{slow.section} {parts(slow.duration_ns, slow.section_ns)}"
    mark = " (profiled)" if slow.profiled else "" if slow.kept else " (not kept)"
    line = f"step {slow.number}{rank}, {duration(slow.duration_ns)}{mark}: {what}"
    return [labelled("slowest", short(line, width - LABEL))]


def _profiled(summary: Summary, width: int) -> list[Line]:
    """Windows that were recorded, and those that were not."""
    told = []
    if summary.windows:
        steps = f", {summary.profiled_steps:,} of the steps above" * bool(summary.profiled_steps)
        windows = plural(summary.windows, "window")
        told.append(f"{windows}{steps} · otel-mlperf kernels {summary.short_id}")
    for reason, count in summary.windows_left_out.items():
        told.append(f"{plural(count, 'window')} left out: {reason}")
    return labelled_lines("profiled", [short(line, width - LABEL) for line in told])


def _outside(summary: Summary, room: int) -> list[str]:
    """The total and its parts in two lines at most; what does not fit is added up."""
    total = summary.outside_ns
    head = f"{duration(total)} ({percent(summary.outside_share)})"
    shares = [part for part in summary.outside if _counts(total, part.sum_ns)]
    # Shares come largest first, so the smallest go first; two lines are what the page has room for.
    for kept in range(len(shares), 0, -1):
        told = [_part(total, share) for share in shares[:kept]]
        rest = sum(share.sum_ns for share in shares[kept:])
        told += [f"other {parts(total, rest)}"] if _counts(total, rest) else []
        lines = wrapped(f"{head}: ", told, room)
        if len(lines) <= 2:
            return lines
    return [head]


def _counts(total: float, part: float) -> bool:
    """Whether a part is worth its words: enough of the whole, and not written as zero."""
    return part >= _LEAST_OUTSIDE * total > 0 and bool(parts(total, part).strip("0."))


def _part(total: float, share: OutsideShare) -> str:
    times = f" ×{share.count:,}" if share.count is not None and share.count > 1 else ""
    return f"{short(share.name, _LONGEST_NAME)} {parts(total, share.sum_ns)}{times}"


def _said(summary: Summary, width: int) -> list[Line]:
    """What the program told of itself, each on as many lines as it needs."""
    room, lines = width - LABEL, []
    for label, facts in (
        ("params", summary.params),
        ("last", summary.last),
        ("counted", summary.counted),
        ("gauges", _gauges(summary.series)),
        ("result", summary.result),
    ):
        told = [short(f"{key} {_value(value)}", room) for key, value in facts.items()]
        between = ", " if label == "result" else " · "
        lines_of = wrapped("", told, room, between) if told else []
        if len(lines_of) > _MOST_SAID:
            lines_of = [*lines_of[: _MOST_SAID - 1], "… summary --json has all of it"]
        lines += labelled_lines(label, lines_of)
    return lines


def _gauges(series: list[ProgramSeries]) -> dict[str, float]:
    """The gauges as they were set last, by name and labels."""
    return {
        f"{gauge.name} ({', '.join(gauge.labels.values())})"
        if gauge.labels
        else gauge.name: gauge.value
        for gauge in series
        if gauge.kind == GAUGE
    }


def _value(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.4g}"


def telemetry_lines(summary: Summary, width: int, notes: Sequence[str]) -> list[Line]:
    """How well the run was recorded, where it lies, and the command to type next."""
    facts = summary.telemetry
    told, place = _recorded(summary), f"stored in {readable(summary.path)}"
    stored: Line = [(place, "")]
    if facts.pending and summary.outcome != RUNNING:
        # While it runs the agent is still at it; afterwards somebody has to act.
        remedy = f"{facts.pending:,} still to be sent: otel-mlperf recover {summary.short_id}"
        notes = [remedy, *notes]
    taken = LABEL + sum(columns(part) + len(_BETWEEN) for part, _ in told)
    if not told or taken + columns(place) <= width:
        lines = [_joined("telemetry", told + stored)]
    else:
        lines = [_joined("telemetry", told), _joined("", stored)]
    lines += [[(" " * LABEL, ""), (short(note, width - LABEL), "yellow")] for note in notes]
    return [*_incomplete(facts), *lines, [("next      ", "dim"), (summary.next, "bold")]]


def _recorded(summary: Summary) -> Line:
    """What is known of the recording: of a run that was imported there was none."""
    facts, told = summary.telemetry, Line()
    if facts.lost is not None:
        told.append((f"{facts.lost:,} lost", "red" if facts.lost else ""))
    elif summary.outcome != IMPORTED:
        told.append(("not counted yet", ""))
    if facts.pending and summary.outcome == RUNNING:
        told.append((f"{facts.pending:,} still to be sent", ""))
    if facts.overhead is not None:
        told.append((f"{_overhead(facts.overhead)} overhead", ""))
    return told


def _incomplete(facts: Telemetry) -> list[Line]:
    """That spans were lost before they were measured, and how to lose none."""
    if not facts.sections_lost:
        return []
    why = f"{plural(facts.sections_lost, 'span')} lost, the journal was full"
    return [
        [("figures   ", "dim"), (f"incomplete: {why}", "red")],
        [(" " * LABEL, ""), (ROOM, "")],
    ]


def _joined(label: str, told: Line) -> Line:
    line: Line = [(f"{label:<{LABEL}}", "dim")]
    for at, part in enumerate(told):
        line += [(_BETWEEN, ""), part] if at else [part]
    return line


def _overhead(share: float) -> str:
    """Tenths of a percent; less than that is said so, not rounded to nothing."""
    return "<0.1 %" if 0 < share < 0.0005 else f"{share * 100:.1f} %"


def readable(path: str) -> str:
    """A path as seen from here, if that is shorter."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path
