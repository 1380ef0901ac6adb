"""How does a summary look on a terminal of 80 columns?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.analysis.processes import RUNNING
from otel_mlperf.analysis.steps import NOT_IN_A_SPAN, shown
from otel_mlperf.report.lines import WIDTH, Line, Style, bar, columns, left, short, text
from otel_mlperf.report.quantities import (
    Unit,
    column_unit,
    duration,
    parts,
    percent,
    plural,
    rate,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.findings import Branch, Outside, Row, Steps, Summary

_LABEL = 10
_LEAST_OUTSIDE = 0.01
_MOST_ROWS = 14
_MOST_BRANCHES = 40
_MOST_RANKS = 3
_NOTHING_YET = "no step and no section has ended"
_NOTHING = "no PyTorch loop was seen; use om.steps and om.span in the script, see README"
_NAME = 13
_WHOLE = 1e12
"""Below it, a number without decimals is written with all its digits."""
_LONGEST_NAME = 28
_OUTCOMES: dict[str, Style] = {"finished": "green", "running": "cyan"}
_COLORS: dict[str, Style] = {
    names.DATA_LOADING: "yellow",
    names.FORWARD: "green",
    names.BACKWARD: "blue",
    names.OPTIMIZER: "magenta",
    names.COMMUNICATION: "red",
    "": "dim",
}


def render_summary(
    summary: Summary,
    *,
    width: int = WIDTH,
    color: bool = False,
    unicode: bool = True,
    notes: Sequence[str] = (),
) -> str:
    """The closing text; ``notes`` are further lines about the telemetry."""
    lines = _heading(summary, width)
    if summary.steps:
        lines += _steps(summary, summary.steps, width)
    else:
        lines += _tree(summary, width)
    lines += _around(summary, width)
    lines += _telemetry(summary, width, notes)
    return text(lines, color=color, unicode=unicode)


def heading_text(summary: Summary) -> str:
    """Which run it is and how it ended, on one line."""
    return "".join(part for part, _ in _heading(summary, 1000)[-1])


def steps_text(steps: Steps) -> str:
    """The figures of the steps on one line."""
    return "".join(part for part, _ in _figures(steps, 1000))


def closing_lines(summary: Summary) -> list[str]:
    """What comes below the table: warm-up, outside time, slowest step, telemetry."""
    lines = _around(summary, 1000) + _telemetry(summary, 1000, ())
    return ["".join(part for part, _ in line).rstrip() for line in lines]


def _heading(summary: Summary, width: int) -> list[Line]:
    lines: list[Line] = []
    if summary.failure:
        lines.append([(short(failure_text(summary), width), "red")])
    of = f" of {summary.world_size}" if summary.world_size > summary.ranks else ""
    ranks = plural(summary.ranks, "rank") if not of else f"{summary.ranks}{of} ranks"
    where = f"{ranks}, {plural(summary.nodes, 'node')}"
    if summary.rank is not None:
        where = f"rank {summary.rank} of {summary.world_size}"
    again = f" · restarted {summary.restarts}×" if summary.restarts else ""
    rest = f"{again} · {where} · {duration(summary.duration_ns)}"
    before = f" · {summary.short_id} · "
    room = width - columns(before) - columns(summary.outcome) - columns(rest)
    style = _OUTCOMES.get(summary.outcome, "red")
    name = short(summary.name, max(8, room))
    return [*lines, [(name, "bold"), (before, ""), (summary.outcome, style), (rest, "")]]


def failure_text(summary: Summary) -> str:
    """How the run ended if not well: ``failed at step 37 in forward: RuntimeError: …``."""
    failure = summary.failure
    if failure is None:
        return ""
    words = [summary.outcome]
    if failure.step is not None:
        words.append(f"at step {failure.step}")
    if failure.section:
        words.append(f"in {shown(failure.section)}")
    if summary.ranks > 1:
        words.append(f"on rank {failure.rank}")
    why = [part for part in (failure.type, failure.message) if part]
    return ": ".join([" ".join(words), *why])


def _steps(summary: Summary, steps: Steps, width: int) -> list[Line]:
    heading = "one step (host time)" if summary.has_gpu else "one step"
    table = _table(heading, steps.rows, column_unit(steps.mean_ns))
    return [_figures(steps, width), *table, *_ranks(steps, width)]


def _ranks(steps: Steps, width: int) -> list[Line]:
    """The ranks that take far longer than the others, and in what."""
    labels = ["ranks", *[""] * (_MOST_RANKS - 1)]
    lines = []
    for label, one in zip(labels, steps.stand_outs, strict=False):
        more = ", ".join(f"{name} +{duration(ns)}" for name, ns in one.more_ns.items())
        lines.append(_labelled(label, short(f"rank {one.rank}: {more}", width - _LABEL)))
    return lines


def _figures(steps: Steps, width: int) -> Line:
    unit = column_unit(steps.mean_ns)
    which = "step" if steps.phase == names.TRAIN else f"{steps.phase} step"
    figures = (
        f" · mean {unit.number(steps.mean_ns)} {unit.name}"
        f"  p50 {unit.number(steps.p50_ns)}  p95 {unit.number(steps.p95_ns)}"
    )
    line: Line = [(plural(steps.count, which), "bold"), (figures, "")]
    for value, word in ((steps.tokens_per_s, "tokens/s"), (steps.samples_per_s, "samples/s")):
        more = f" · {rate(value)} {word}" if value is not None else ""
        if sum(columns(part) for part, _ in line) + columns(more) <= width:
            line.append((more, ""))
    return line


def _table(heading: str, rows: list[Row], unit: Unit) -> list[Line]:
    main = _cut([row for row in rows if not row.beside])
    beside = _cut([row for row in rows if row.beside])
    width = max(_NAME, columns(heading) + 2, *(columns(row.name) for row in (*main, *beside)))
    width = min(width, _LONGEST_NAME)
    numbers = [unit.number(row.mean_ns) for row in (*main, *beside)]
    mean = max(7, *(len(number) + 2 for number in numbers))
    p95 = max(6, *(len(unit.number(row.p95_ns or 0)) + 2 for row in (*main, *beside)))
    title = f"  {left(heading, width)}{f'mean {unit.name}':>{mean}}{'p95':>{p95}}  share"
    lines: list[Line] = [[(title, "dim")]]
    lines += [_row(row, unit, (width, mean, p95)) for row in main]
    if beside:
        lines.append([("  beside the step", "dim")])
        lines += [_row(row, unit, (width, mean, p95)) for row in beside]
    return lines


def _row(row: Row, unit: Unit, widths: tuple[int, int, int]) -> Line:
    width, mean, p95 = widths
    late = "–" if row.p95_ns is None else unit.number(row.p95_ns)
    line = f"  {left(row.name, width)}{unit.number(row.mean_ns):>{mean}}{late:>{p95}}"
    if row.beside:
        return [(line, "")]
    line += f"{percent(row.share):>7}  "
    return [(line, ""), (bar(row.share), _COLORS.get(row.category, "cyan"))]


def _cut(rows: list[Row]) -> list[Row]:
    """The rows that matter, in their order; the others as one."""
    if len(rows) <= _MOST_ROWS:
        return rows
    largest = sorted(rows, key=lambda row: (row.name == NOT_IN_A_SPAN, row.mean_ns))
    most = {row.name for row in largest[-_MOST_ROWS + 1 :]}
    others = [row for row in rows if row.name not in most]
    kept = [row for row in rows if row.name in most]
    rest = type(others[0])(
        name=f"{len(others)} others",
        category="",
        mean_ns=sum(row.mean_ns for row in others),
        p95_ns=None,
        share=sum(row.share for row in others),
        beside=others[0].beside,
    )
    at = len(kept) - (kept[-1].name == NOT_IN_A_SPAN)
    return [*kept[:at], rest, *kept[at:]]


def _tree(summary: Summary, width: int) -> list[Line]:
    branches = _largest(summary.tree)
    if not any(one.count for one in branches):
        return [[(_NOTHING_YET if summary.outcome == RUNNING else _NOTHING, "dim")]]
    names_of = [f"{'  ' * min(one.depth, 8)}{one.name}" for one in branches]
    column = min(max(_NAME, *map(columns, names_of)) + 1, 34)
    title = f"  {left('section', column)}{'calls':>9}{'total':>10}{'self':>10}  share"
    lines: list[Line] = [[(title, "dim")]]
    for name, one in zip(names_of, branches, strict=True):
        lines.append(_branch(name, one, column))
    if len(branches) < len(summary.tree):
        lines.append([(f"  {len(summary.tree) - len(branches)} smaller ones", "dim")])
    return lines


def _branch(name: str, one: Branch, column: int) -> Line:
    indent = len(name) - len(name.lstrip())
    label = name[:indent] + left(name[indent:], column - indent)
    calls = f"{one.count:,}" if one.count else ""
    total = duration(one.sum_ns) if one.count else ""
    line = f"  {label}{calls:>9}{total:>10}{duration(one.self_ns):>10}"
    if one.beside:
        return [(line, ""), (" beside", "dim")]
    style: Style = "dim" if one.name == NOT_IN_A_SPAN else "cyan"
    return [(f"{line}{percent(one.share):>7}  ", ""), (bar(one.share, 14), style)]


def _largest(tree: list[Branch]) -> list[Branch]:
    """The tree without its smallest branches; a branch is never shown without those around it."""
    if len(tree) <= _MOST_BRANCHES:
        return tree
    least = sorted((one.sum_ns for one in tree), reverse=True)[_MOST_BRANCHES - 1]
    kept: list[Branch] = []
    for one in tree[:-1]:
        if one.sum_ns >= least and one.depth <= (kept[-1].depth + 1 if kept else 0):
            kept.append(one)
    return [*kept, tree[-1]]


def _around(summary: Summary, width: int) -> list[Line]:
    lines: list[Line] = []
    for one in summary.aggregates[:5]:
        mean = duration(one.sum_ns / max(1, one.count))
        where = f" in {shown(one.enclosing)}" if one.enclosing else ""
        line = f"{one.name} ×{one.count:,}: {duration(one.sum_ns)}{where}, mean {mean}"
        lines.append(_labelled("added up", short(line, width - _LABEL)))
    if summary.warm_up:
        line = f"step {summary.warm_up.number}: {duration(summary.warm_up.duration_ns)}"
        lines.append(_labelled("warm-up", f"{line} (not in the figures above)"))
    if summary.outside:
        labels = ("outside", "")
        told = _outside(summary, width - _LABEL)
        lines += [_labelled(label, line) for label, line in zip(labels, told, strict=False)]
    return [*lines, *_beside(summary, width), *_slowest(summary, width), *_said(summary, width)]


def _beside(summary: Summary, width: int) -> list[Line]:
    if not summary.beside:
        return []
    told = ", ".join(
        f"{short(one.name, _LONGEST_NAME)} {duration(one.sum_ns)} ×{one.count:,}"
        for one in summary.beside
    )
    return [_labelled("beside", short(told, width - _LABEL))]


def _slowest(summary: Summary, width: int) -> list[Line]:
    slow = summary.slowest
    if slow is None:
        return []
    rank = f" on rank {slow.rank}" if summary.ranks > 1 else ""
    what = f"{slow.section} {parts(slow.duration_ns, slow.section_ns)}"
    line = f"step {slow.number}{rank}, {duration(slow.duration_ns)}: {what}"
    return [_labelled("slowest", short(line, width - _LABEL))]


def _said(summary: Summary, width: int) -> list[Line]:
    """What the program told of itself."""
    lines = []
    said = (("params", summary.params), ("last", summary.last), ("counted", summary.counted))
    for label, facts in said:
        if facts:
            line = " · ".join(f"{key} {_value(value)}" for key, value in facts.items())
            lines.append(_labelled(label, short(line, width - _LABEL)))
    if summary.result:
        line = ", ".join(f"{key} {_value(value)}" for key, value in summary.result.items())
        lines.append(_labelled("result", short(line, width - _LABEL)))
    return lines


def _value(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value.is_integer() and value < _WHOLE else f"{value:.4g}"


def _outside(summary: Summary, room: int) -> list[str]:
    """The total and its parts in two lines at most; what does not fit is added up."""
    total = summary.outside_ns
    head = f"{duration(total)} ({percent(summary.outside_share)})"
    found = [one for one in summary.outside if _counts(total, one.sum_ns)]
    for kept in range(len(found), 0, -1):
        told = [_part(total, one) for one in found[:kept]]
        rest = sum(one.sum_ns for one in found[kept:])
        told += [f"other {parts(total, rest)}"] if _counts(total, rest) else []
        lines = _wrapped(f"{head}: ", told, room)
        if len(lines) <= 2:
            return lines
    return [head]


def _counts(total: float, part: float) -> bool:
    """Whether a part is worth its words: enough of the whole, and not written as zero."""
    return part >= _LEAST_OUTSIDE * total > 0 and bool(parts(total, part).strip("0."))


def _wrapped(head: str, told: list[str], room: int) -> list[str]:
    lines = [head]
    for at, part in enumerate(told):
        more = part + (", " if at < len(told) - 1 else "")
        if columns(lines[-1] + more.rstrip()) > room:
            lines.append("")
        lines[-1] += more
    return lines


def _part(total: float, one: Outside) -> str:
    times = f" ×{one.count:,}" if one.count is not None and one.count > 1 else ""
    return f"{short(one.name, _LONGEST_NAME)} {parts(total, one.sum_ns)}{times}"


def _telemetry(summary: Summary, width: int, notes: Sequence[str]) -> list[Line]:
    facts = summary.telemetry
    line: Line = [("telemetry ", "dim")]
    if facts.lost is None:
        line.append(("not counted yet", ""))
    else:
        line.append((f"{facts.lost:,} lost", "red" if facts.lost else ""))
    if facts.pending and summary.outcome == RUNNING:
        line.append((f" · {facts.pending:,} still to be sent", ""))
    if facts.overhead is not None:
        line.append((f" · {_overhead(facts.overhead)} overhead", ""))
    stored = f"stored in {readable(summary.path)}"
    lines = [line]
    if sum(columns(part) for part, _ in line) + len(stored) + 3 <= width:
        line.append((f" · {stored}", ""))
    else:
        lines.append([(" " * _LABEL, ""), (stored, "")])
    if facts.pending and summary.outcome != RUNNING:
        remedy = f"{facts.pending:,} still to be sent: otel-mlperf recover {summary.short_id}"
        notes = [remedy, *notes]
    lines += [[(" " * _LABEL, ""), (short(note, width - _LABEL), "yellow")] for note in notes]
    if facts.sections_lost:
        why = f"{plural(facts.sections_lost, 'section')} lost, shared memory too small"
        lines.insert(0, [("figures   ", "dim"), (f"incomplete: {why}", "red")])
    return [*lines, [("next      ", "dim"), (summary.next, "bold")]]


def _overhead(share: float) -> str:
    """Tenths of a percent; less than that is said so, not rounded to nothing."""
    return "<0.1 %" if 0 < share < 0.0005 else f"{share * 100:.1f} %"


def readable(path: str) -> str:
    """A path as seen from here, if that is shorter."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


def _labelled(label: str, line: str) -> Line:
    return [(f"{label:<{_LABEL}}", "dim"), (line, "")]
