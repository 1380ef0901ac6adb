"""How does one step look on a terminal, with the operators and kernels of its sections?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.profiles.section_operators import add_up
from otel_mlperf.analysis.steps.step_shares import shown
from otel_mlperf.report.kernel_names import short_names
from otel_mlperf.report.lines import WIDTH, Line, columns, left, short, text
from otel_mlperf.report.quantities import duration, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.profiles.section_operators import Operator, Place
    from otel_mlperf.analysis.steps.step_shapes import RankStep, Span, StepFindings
    from otel_mlperf.report.lines import Style

_CHART = 24
_NAME = 34
_SAME = 5
"""Sections of one name in a row that are shown singly."""
_NOT_KEPT = "measured, not kept (first, every Nth, slow ones are)"
_RANKS = 16
_LEAST_OUTSIDE = 0.001
"""Part of a step's time below which it is not worth a word what lay inside it."""
_MOST_NAMES: Final[dict[Place, int]] = {"here": 4, "beside": 2, "device": 2}
"""Names that are shown of those on each place."""
_ALONE: Final = 8
"""Of those of one place, where nothing was elsewhere."""
_LEAST_OWN: Final = 0.01
"""Part of a section's own time below which what was in no operator is not told."""
_WORDS: Final[dict[Place, str]] = {
    "here": "",
    "beside": "  on other threads",
    "device": "  on the device",
}
_TIME: Final = 10
_LEGEND: Final = "operators by name, each with its own time: a part of the self time above them"


def render_step(
    step: StepFindings, *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """The spans of each rank that kept them as a tree; else what was measured."""
    epoch = f" · epoch {step.epoch}" if step.epoch is not None else ""
    title = f"step {step.number}"
    lines: list[Line] = [
        [(title, "bold"), (f" · {step.phase}{epoch} · run {step.short_id}", "")],
        [(f"trace {step.trace_id}", "dim")],
    ]
    if step.chosen:
        others = ", ".join(map(str, step.kept))
        line = f"the slowest step that was kept; --step N shows another: {others}"
        lines.append([(short(line, width), "dim")])
    if not step.is_kept:
        near = ", ".join(map(str, step.nearby)) or "none"
        lines.append([(f"{_NOT_KEPT}; kept nearby: {near}", "yellow")])
    for rank in step.ranks[:_RANKS]:
        lines.append(_heading(rank, step.is_kept))
        if rank.spans:
            lines += _tree(rank.spans, width)
        elif not step.is_kept:
            lines += _measured(rank)
    if any(span.operators for of_rank in step.ranks[:_RANKS] for span in of_rank.spans):
        lines.append([(_LEGEND, "dim")])
    if len(step.ranks) > _RANKS:
        lines.append([(f"and {plural(len(step.ranks) - _RANKS, 'rank')} more: --rank N", "dim")])
    return text(lines, color=color, unicode=unicode)


def _heading(rank: RankStep, others_kept: bool) -> Line:
    facts = [duration(rank.duration_ns) + _outside(rank)]
    facts += [f"{rank.samples:,} samples"] if rank.samples is not None else []
    facts += [f"{rank.tokens:,} tokens"] if rank.tokens is not None else []
    if rank.kept or others_kept:
        facts.append(f"kept: {rank.kept}" if rank.kept else "measured, not kept")
    line: Line = [(f"rank {rank.rank}", "bold"), (" · " + " · ".join(facts), "")]
    return [*line, (" · failed", "red")] if rank.is_error else line


def _outside(rank: RankStep) -> str:
    """What the step's span holds that is no time of the step."""
    if rank.outside_ns < _LEAST_OUTSIDE * rank.duration_ns:
        return ""
    what = f": {', '.join(rank.outside)}" if rank.outside else ""
    return f" ({duration(rank.outside_ns)} of its span outside it{what})"


def _tree(spans: list[Span], width: int) -> list[Line]:
    begin = min(span.start_ns for span in spans)
    whole = max(max(span.start_ns + span.duration_ns for span in spans) - begin, 1)
    chart = max(8, min(_CHART, width - _NAME - 24))
    title = f"  {left('span', _NAME)}{'time':>10}{'self':>10}"
    lines: list[Line] = [[(title, "dim")]]
    for at, span in enumerate(spans):
        # A loop of hundreds of equal sections would hide the rest of the step.
        if (row := _place_in_row(spans, at)) > _SAME:
            continue
        more = _others(spans, at) if row == _SAME else []
        if more:
            lines += [_summed(more), *_operators(spans, at)]
            continue
        line = f"  {_label(span)}"
        line += f"{duration(span.duration_ns):>10}{duration(span.self_ns):>10}  "
        style: Style = "red" if span.is_error else "dim" if span.beside else "cyan"
        lines.append([(line, ""), (_bar(span, begin, whole, chart), style)])
        lines += [*_error(spans, at, width), *_operators(spans, at)]
    return lines


def _operators(spans: list[Span], at: int) -> list[Line]:
    """Those under a span; those of leaves of the same name in a row together, below the last."""
    span, alike = spans[at], [spans[at]]
    if _is_leaf(spans, at):
        place, after = _place_in_row(spans, at), _others(spans, at)[1:]
        if after and place < _SAME:
            return []
        alike = [*spans[at - place : at + 1], *after]
    operators = add_up(leaf.operators for leaf in alike)
    own = sum(leaf.self_ns for leaf in alike)
    indent = 2 * min(span.depth, 10) + 2
    return _operator_lines(operators, own, indent, _NAME)


def _label(span: Span) -> str:
    name = shown(span.name)
    count = span.attributes.get(names.ROLLED_UP)
    name = f"{name} ×{count:,}" if count else name
    name = f"{name} ({span.thread or 'beside'})" if span.beside else name
    indent = "  " * min(span.depth, 10)
    return indent + left(name, _NAME - len(indent))


def _bar(span: Span, begin: int, whole: int, chart: int) -> str:
    at = min(int((span.start_ns - begin) / whole * chart), chart - 1)
    size = max(1, round(span.duration_ns / whole * chart))
    return " " * at + "▇" * min(size, chart - at)


def _place_in_row(spans: list[Span], at: int) -> int:
    """How many leaves of the same name and depth stand directly before this one."""
    span, before = spans[at], 0
    if not _is_leaf(spans, at):
        return 0
    while before <= _SAME and at - before > 0 and _same(spans, at - before - 1, span):
        before += 1
    return before


def _others(spans: list[Span], at: int) -> list[Span]:
    """The leaves of the same name from here on, if they are too many to show."""
    end = at
    while end < len(spans) and _same(spans, end, spans[at]):
        end += 1
    return spans[at:end] if end - at > 1 else []


def _same(spans: list[Span], at: int, span: Span) -> bool:
    other = spans[at]
    return (other.name, other.depth) == (span.name, span.depth) and _is_leaf(spans, at)


def _is_leaf(spans: list[Span], at: int) -> bool:
    return at + 1 == len(spans) or spans[at + 1].depth <= spans[at].depth


def _summed(more: list[Span]) -> Line:
    indent = "  " * min(more[0].depth, 10)
    name = f"{len(more):,} more {shown(more[0].name)}"
    total = duration(sum(span.duration_ns for span in more))
    return [(f"  {indent}{left(name, _NAME - len(indent))}{total:>10}", "dim")]


def _error(spans: list[Span], at: int, width: int) -> list[Line]:
    """The exception that crossed a span, told at the innermost one that it crossed."""
    told = _words(spans[at])
    below = at + 1
    while below < len(spans) and spans[below].depth > spans[at].depth:
        # An exception passes through all sections around it: said once, where it came from.
        if _words(spans[below]) == told:
            return []
        below += 1
    indent = "  " * (min(spans[at].depth, 10) + 2)
    return [[(indent + short(told, width - len(indent)), "red")]] if told else []


def _words(span: Span) -> str:
    if span.attributes.get(names.INTERRUPTED):
        return "open when its process ended"
    keys = (names.EXCEPTION_TYPE, names.EXCEPTION_MESSAGE)
    return ": ".join(str(span.attributes[key]) for key in keys if span.attributes.get(key))


def _measured(rank: RankStep) -> list[Line]:
    width = max(_NAME // 2, *(columns(section.name) for section in rank.sections)) + 1
    width = min(width, _NAME)
    title = f"  {left('section', width)}{'calls':>8}{'total':>10}{'self':>10}"
    lines: list[Line] = [[(title, "dim")]]
    for section in rank.sections:
        line = f"  {left(section.name, width)}{section.count:>8,}"
        line += f"{duration(section.sum_ns):>10}{duration(section.self_ns):>10}"
        lines.append([(line, ""), ("  beside" if section.beside else "", "dim")])
    return lines


def _operator_lines(
    operators: Sequence[Operator], self_ns: int, indent: int, width: int
) -> list[Line]:
    """The largest of each place, and the rest of them added up.

    Those on the section's thread are a part of its ``self_ns``; what is left was in no operator.
    """
    lines: list[Line] = []
    for place, few in _MOST_NAMES.items():
        mine = [operator for operator in operators if operator.place == place]
        most = _ALONE if len(mine) == len(operators) else few
        rows = _rows(mine, most if len(mine) > most + 1 else len(mine), width - indent)
        own = self_ns - sum(operator.self_ns for operator in mine)
        if mine and place == "here" and own >= _LEAST_OWN * self_ns > 0:
            rows.append(("not in an operator", own))
        lines += [_operator_line(name, ns, place, indent, width) for name, ns in rows]
    return lines


def _rows(mine: Sequence[Operator], most: int, room: int) -> list[tuple[str, int]]:
    counts = [f" ×{operator.count:,}" if operator.count > 1 else "" for operator in mine[:most]]
    names = short_names(
        [operator.name for operator in mine[:most]], room - max(map(len, counts), default=0)
    )
    rows = [
        (name + count, operator.self_ns)
        for operator, name, count in zip(mine, names, counts, strict=False)
    ]
    if rest := mine[most:]:
        rows.append((f"{len(rest):,} more", sum(operator.self_ns for operator in rest)))
    return rows


def _operator_line(name: str, ns: int, place: Place, indent: int, width: int) -> Line:
    time = f"{duration(ns):>{_TIME}}"
    columns = f"{'':{_TIME}}{time}" if place == "here" else f"{time}{'':{_TIME}}"
    text = f"  {' ' * indent}{left(name, width - indent)}{columns}"
    return [(f"{text}{_WORDS[place]}", "dim")]
