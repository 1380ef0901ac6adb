"""Terminal rendering of one step or request, with the operators and kernels of its sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.profiles.section_operators import add_up
from otel_mlperf.analysis.steps.step_shares import UNTRACKED, shown
from otel_mlperf.quantities import duration, plural, size_and_rate
from otel_mlperf.report.kernel_names import short_names
from otel_mlperf.report.machine_lines import step_gpu_texts
from otel_mlperf.report.section_tables import usage_texts
from otel_mlperf.terminal_lines import WIDTH, Line, columns, folded, left, short, text, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.profiles.section_operators import Operator, Place
    from otel_mlperf.analysis.steps.step_shapes import (
        RankStep,
        RankTrace,
        RequestTrace,
        RunTrace,
        Span,
        StepFindings,
        StepSection,
    )
    from otel_mlperf.terminal_lines import Style

LEGEND: Final = "operators by name: their time is part of the self time of the section above"
_NAME: Final = 34
"""Columns for a span's name in a terminal of ``WIDTH`` columns."""
_CHART: Final = (8, 60)
_SAME: Final = 5
"""Maximum number of consecutive sections of the same name that are shown singly."""
_MAX_OPERATORS: Final[dict[Place, int]] = {"here": 4, "beside": 2, "device": 2}
"""Maximum number of operators to show by the place where they ran."""
_ALONE: Final = 8
"""Maximum number of operators to show if all of them ran at the same place."""
_MIN_OWN_SHARE: Final = 0.01
"""Minimum share of a section's self time for time outside operators to be shown."""
_PLACE_LABELS: Final[dict[Place, str]] = {
    "here": "",
    "beside": "  on other threads",
    "device": "  on the device",
}
_TIME: Final = 10
_NOT_THE_PROGRAMS: Final = (
    *("otel_mlperf.", "otel.", "ml.", "pytorch.", "cuda.", "exception.", "error.", "code."),
    "thread.",
)
"""Prefixes of span attributes that the user's own program did not set."""


def span_lines(spans: list[Span], width: int) -> list[Line]:
    """Return lines on each span, in depth-first order: its time as a bar, and its operators."""
    begin = min(span.start_ns for span in spans)
    whole = max(max(span.start_ns + span.duration_ns for span in spans) - begin, 1)
    name, chart = _rooms(spans, width)
    title = f"  {left('span', name)}{'time':>{_TIME}}{'self':>{_TIME}}"
    lines: list[Line] = [[(title, "dim")]]
    for at, span in enumerate(spans):
        # Merge repeated sections: hundreds of lines from a loop would hide the rest of the step.
        if (row := _place_in_row(spans, at)) > _SAME:
            continue
        more = _equal_leaves(spans, at) if row == _SAME else []
        if more:
            lines += [_summed(more, name), *_operators(spans, at, name)]
            continue
        line = f"  {_padded(span, _label(span, spans[0].thread), name)}"
        line += f"{duration(span.duration_ns):>{_TIME}}{duration(span.self_ns):>{_TIME}}  "
        style: Style = "red" if span.is_error else "dim" if span.beside else "cyan"
        lines.append([(line, ""), (_bar(span, begin, whole, chart), style)])
        lines += [*_used(span, width), *_value_lines(span, width), *_error(spans, at, width)]
        lines += _operators(spans, at, name)
    return lines


def _rooms(spans: list[Span], width: int) -> tuple[int, int]:
    more = width - WIDTH
    longest = max(len(_indent(span)) + columns(_label(span, spans[0].thread)) for span in spans)
    name = _NAME + (more // 2 if more < 0 else min(more // 2, max(0, longest - _NAME)))
    min_chart, max_chart = _CHART
    return name, max(min_chart, min(max_chart, width - name - 2 * _TIME - 4))


def _operators(spans: list[Span], at: int, name: int) -> list[Line]:
    """Return lines on the operators of span ``at``; for equal leaves once, after the last leaf."""
    span, alike = spans[at], [spans[at]]
    if _is_leaf(spans, at):
        place, after = _place_in_row(spans, at), _equal_leaves(spans, at)[1:]
        if after and place < _SAME:
            return []
        alike = [*spans[at - place : at + 1], *after]
    operators = add_up(leaf.operators for leaf in alike)
    own = sum(leaf.self_ns for leaf in alike)
    indent = 2 * min(span.depth, 10) + 2
    return _operator_lines(operators, own, indent, name)


def _label(span: Span, home: str) -> str:
    """Return a span's name, with the thread of a concurrent span; ``home`` is the root's thread."""
    name = shown(span.name)
    count = span.attributes.get(names.ROLLED_UP)
    name = f"{name} ×{count:,}" if count else name
    # A concurrent span with the same thread name ran in a forked process: fork copies the names.
    where = "another process" if span.thread == home else span.thread or "concurrent"
    return f"{name} ({where})" if span.beside else name


def _padded(span: Span, label: str, room: int) -> str:
    return _indent(span) + left(label, room - len(_indent(span)))


def _indent(span: Span) -> str:
    return "  " * min(span.depth, 10)


def _bar(span: Span, begin: int, whole: int, chart: int) -> str:
    at = min(int((span.start_ns - begin) / whole * chart), chart - 1)
    size = max(1, round(span.duration_ns / whole * chart))
    return " " * at + "▇" * min(size, chart - at)


def _place_in_row(spans: list[Span], at: int) -> int:
    """Return how many leaves of the same name and depth directly precede the leaf at index ``at``.

    The count is at most ``_SAME + 1``, and 0 if the span at ``at`` is not a leaf.
    """
    span, before = spans[at], 0
    if not _is_leaf(spans, at):
        return 0
    while before <= _SAME and at - before > 0 and _same(spans, at - before - 1, span):
        before += 1
    return before


def _equal_leaves(spans: list[Span], at: int) -> list[Span]:
    """Return leaf ``at`` and the equal leaves that directly follow it; empty if none follows."""
    end = at
    while end < len(spans) and _same(spans, end, spans[at]):
        end += 1
    return spans[at:end] if end - at > 1 else []


def _same(spans: list[Span], at: int, span: Span) -> bool:
    other = spans[at]
    return (other.name, other.depth) == (span.name, span.depth) and _is_leaf(spans, at)


def _is_leaf(spans: list[Span], at: int) -> bool:
    return at + 1 == len(spans) or spans[at + 1].depth <= spans[at].depth


def _summed(more: list[Span], room: int) -> Line:
    label = _padded(more[0], f"{len(more):,} more {shown(more[0].name)}", room)
    total = duration(sum(span.duration_ns for span in more))
    own = duration(sum(span.self_ns for span in more))
    return [(f"  {label}{total:>{_TIME}}{own:>{_TIME}}", "dim")]


def _used(span: Span, width: int) -> list[Line]:
    used = usage_texts(span.attributes)
    indent = "    " + _indent(span)
    parts = wrapped("", used, width - len(indent), " · ") if used else []
    return [[(indent + part, "dim")] for part in parts]


def _value_lines(span: Span, width: int) -> list[Line]:
    """Return a line with the attributes that the user's program set, and a checkpoint's size."""
    values = [
        f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in span.attributes.items()
        if not key.startswith(_NOT_THE_PROGRAMS)
    ]
    shown_text = " · ".join([*_checkpoint(span), *values])
    indent = "    " + _indent(span)
    return [[(indent + short(shown_text, width - len(indent)), "dim")]] if shown_text else []


def _checkpoint(span: Span) -> list[str]:
    bytes_, rate = (
        span.attributes.get(key) for key in (names.CHECKPOINT_SIZE, names.CHECKPOINT_RATE)
    )
    if isinstance(bytes_, int) and isinstance(rate, float):
        return [size_and_rate(bytes_, rate)]
    return []


def _error(spans: list[Span], at: int, width: int) -> list[Line]:
    """Return a line on the exception that ended span ``at``; empty if a nested span has it."""
    message = _error_text(spans[at])
    below = at + 1
    while below < len(spans) and spans[below].depth > spans[at].depth:
        # An exception propagates through all enclosing sections: print it once, at the innermost.
        if _error_text(spans[below]) == message:
            return []
        below += 1
    indent = "    " + _indent(spans[at])
    return [[(indent + short(message, width - len(indent)), "red")]] if message else []


def _error_text(span: Span) -> str:
    if span.attributes.get(names.INTERRUPTED):
        return "still open when the process ended"
    keys = (names.EXCEPTION_TYPE, names.EXCEPTION_MESSAGE)
    return ": ".join(str(span.attributes[key]) for key in keys if span.attributes.get(key))


def _operator_lines(
    operators: Sequence[Operator], self_ns: int, indent: int, width: int
) -> list[Line]:
    """Return lines on the largest operators per place, and on the sum of the other operators.

    ``self_ns``, the section's self time, includes the operators on the section's thread. The
    self time that they do not cover is shown as ``outside operators``.
    """
    lines: list[Line] = []
    for place, few in _MAX_OPERATORS.items():
        mine = [operator for operator in operators if operator.place == place]
        max_shown = _ALONE if len(mine) == len(operators) else few
        rows = _rows(mine, max_shown if len(mine) > max_shown + 1 else len(mine), width - indent)
        own = self_ns - sum(operator.self_ns for operator in mine)
        if mine and place == "here" and own >= _MIN_OWN_SHARE * self_ns > 0:
            rows.append(("outside operators", own))
        lines += [_operator_line(name, ns, place, indent, width) for name, ns in rows]
    return lines


def _rows(mine: Sequence[Operator], max_shown: int, room: int) -> list[tuple[str, int]]:
    counts = [
        f" ×{operator.count:,}" if operator.count > 1 else "" for operator in mine[:max_shown]
    ]
    names = short_names(
        [operator.name for operator in mine[:max_shown]], room - max(map(len, counts), default=0)
    )
    rows = [
        (name + count, operator.self_ns)
        for operator, name, count in zip(mine, names, counts, strict=False)
    ]
    if rest := mine[max_shown:]:
        rows.append((f"{len(rest):,} more", sum(operator.self_ns for operator in rest)))
    return rows


def _operator_line(name: str, ns: int, place: Place, indent: int, width: int) -> Line:
    time = f"{duration(ns):>{_TIME}}"
    columns = f"{'':{_TIME}}{time}" if place == "here" else f"{time}{'':{_TIME}}"
    text = f"  {' ' * indent}{left(name, width - indent)}{columns}"
    return [(f"{text}{_PLACE_LABELS[place]}", "dim")]


_SECTION: Final = 34
_NOT_KEPT: Final = "measured, not sampled (the first, every Nth and slow steps are)"
_UNKNOWN_PHASE: Final = "from the profiler only"
"""Text instead of the phase if only a profiler, and not the package, recorded the step."""
_RANKS: Final = 16
_MIN_OUTSIDE_SHARE: Final = 0.001
"""Minimum share of a step's time for time outside the step to be shown."""
_ADDED_UP: Final = "aggregated sections (no spans): their time is part of the self times above"


def _listed(head: str, texts: Sequence[str], width: int) -> str:
    """Return ``head`` followed by as many texts as fit, and the number of omitted texts."""
    for count in range(len(texts), 0, -1):
        more = [f"… ({len(texts) - count} more)"] if count < len(texts) else []
        line = head + ", ".join([*texts[:count], *more])
        if columns(line) <= width:
            return line
    return short(head + (", ".join(texts) or "none"), width)


def render_step(
    step: StepFindings, *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Render a step on each rank: a tree of its spans if it was sampled, else its sections."""
    epoch = f" · epoch {step.epoch}" if step.epoch is not None else ""
    title = f"step {step.number}"
    lines: list[Line] = [
        [(title, "bold"), (f" · {step.phase or _UNKNOWN_PHASE}{epoch} · run {step.short_id}", "")],
        [(f"trace {step.trace_id}", "dim")],
    ]
    if step.chosen:
        other_steps = [f"{number}" for number in step.kept if number != step.number]
        head = "slowest sampled step; other sampled steps (--step N): "
        lines.append([(_listed(head, other_steps, width), "dim")])
    if not step.is_kept:
        near = ", ".join(map(str, step.nearby)) or "none"
        lines.append([(f"{_NOT_KEPT}; sampled nearby: {near}", "yellow")])
    shown = _shown_ranks(step.ranks)
    for rank in shown:
        lines += folded(_heading(rank, step.is_kept), width)
        lines += _marks(rank, width)
        if rank.spans:
            lines += span_lines(rank.spans, width)
        if not step.is_kept or _has_only_root(rank):
            lines += _measured(rank)
        elif rank.spans:
            lines += _added_up(rank.sections)
    lines += _foot(shown, len(step.ranks))
    return text(lines, color=color, unicode=unicode)


def _shown_ranks(ranks: Sequence[RankStep]) -> Sequence[RankStep]:
    """Return at most ``_RANKS`` ranks, sorted; failed, sampled and slow ranks are preferred."""
    return sorted(sorted(ranks, key=_weight)[-_RANKS:], key=lambda of: of.rank)


def _weight(of: RankStep) -> tuple[bool, bool, bool, int, int]:
    return of.is_error, of.kept is not None, len(of.spans) > 1, of.duration_ns, -of.rank


def _has_only_root(rank: RankStep) -> bool:
    return len(rank.spans) == 1 and any(one.name != UNTRACKED for one in rank.sections)


def render_run_trace(
    trace: RunTrace, *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Render a run's trace, which contains its sections outside steps, as a tree per rank."""
    title = f" · run {trace.short_id} · the run itself and sections outside steps"
    lines = folded([(trace.name, "bold"), (title, "")], width)
    lines.append([(f"trace {trace.trace_id}", "dim")])
    for rank in trace.ranks[:_RANKS]:
        lines.append([(f"rank {rank.rank}", "bold"), (f" · {duration(rank.duration_ns)}", "")])
        lines += span_lines(rank.spans, width) if rank.spans else []
    lines += _foot(trace.ranks[:_RANKS], len(trace.ranks))
    return text(lines, color=color, unicode=unicode)


def render_request(
    request: RequestTrace, *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Render a request as a tree of its spans."""
    id = f" {request.request_id}" if request.request_id is not None else ""
    where = f" · rank {request.rank} · run {request.short_id}"
    line: Line = [(f"request {request.name}{id}", "bold"), (where, "")]
    lines = folded([*line, (" · failed", "red")] if request.is_error else line, width)
    lines.append([(f"trace {request.trace_id}", "dim")])
    which = "slowest sampled request" if request.chosen else f"sampled: {request.kept}"
    hint = f"{which}; other requests by start time: --request 1 to {request.kept_requests:,}"
    lines.append([(short(hint, width), "dim")])
    facts = f"request number {request.number:,} · {duration(request.duration_ns)}"
    lines += [[(facts, "")], *span_lines(request.spans, width)]
    return text(lines, color=color, unicode=unicode)


def _foot(shown: Sequence[RankStep] | Sequence[RankTrace], ranks: int) -> list[Line]:
    lines: list[Line] = []
    if any(span.operators for of_rank in shown for span in of_rank.spans):
        lines.append([(LEGEND, "dim")])
    if ranks > len(shown):
        lines.append([(f"{plural(ranks - len(shown), 'more rank')}: --rank N", "dim")])
    return lines


_SAMPLED: Final = {
    "first": "sampled as one of the first",
    "every": "sampled at the interval",
    "slow": "sampled as slow",
    "longest": "sampled as the longest so far",
    "error": "sampled because it failed",
    "profiled": "sampled because it was profiled",
    "interrupted": "sampled because it was interrupted",
}
"""Texts for the reasons to sample a step."""


def _heading(rank: RankStep, is_step_kept: bool) -> Line:
    facts = [duration(rank.duration_ns) + _outside(rank)]
    facts += [f"{rank.samples:,} samples"] if rank.samples is not None else []
    facts += [f"{rank.tokens:,} tokens"] if rank.tokens is not None else []
    facts += step_gpu_texts(rank.gpu)
    if rank.kept:
        facts.append(_SAMPLED.get(rank.kept, f"sampled: {rank.kept}"))
    elif is_step_kept:
        facts.append("measured, not sampled")
    line: Line = [(f"rank {rank.rank}", "bold"), *((f" · {fact}", "") for fact in facts)]
    return [*line, (" · failed", "red")] if rank.is_error else line


def _marks(rank: RankStep, width: int) -> list[Line]:
    if not rank.marks:
        return []
    marks = ", ".join(f"{mark.name} at {duration(mark.after_ns)}" for mark in rank.marks)
    return [[("  ", ""), (short(f"marks: {marks}", width - 2), "dim")]]


def _outside(rank: RankStep) -> str:
    """Return a text on time in the step's span but outside the step; empty if negligible."""
    if rank.outside_ns < _MIN_OUTSIDE_SHARE * rank.duration_ns:
        return ""
    reasons = f": {', '.join(rank.outside)}" if rank.outside else ""
    return f" (its span also contains {duration(rank.outside_ns)} outside the step{reasons})"


def _added_up(sections: Sequence[StepSection]) -> list[Line]:
    rows = [section for section in sections if section.aggregate]
    lines: list[Line] = [[(f"  {_ADDED_UP}", "dim")]] if rows else []
    for row in rows:
        name = left(f"  {row.name} ×{row.count:,}", _SECTION)
        relation = "concurrent with" if _is_elsewhere(row) else "in"
        where = f"  {relation} {row.inside}" * bool(row.inside)
        times = f"{duration(row.sum_ns):>10}{duration(row.self_ns):>10}"
        lines.append([(f"  {name}{times}", ""), (where, "dim")])
    return lines


def _is_elsewhere(section: StepSection) -> bool:
    """Return whether a section ran on another thread or task than its step."""
    return section.beside and not section.is_part


def _measured(rank: RankStep) -> list[Line]:
    width = max(_SECTION // 2, *(columns(section.name) for section in rank.sections)) + 1
    width = min(width, _SECTION)
    title = f"  {left('section', width)}{'calls':>8}{'total':>10}{'self':>10}"
    lines: list[Line] = [[(title, "dim")]]
    for section in rank.sections:
        line = f"  {left(section.name, width)}{section.count:>8,}"
        line += f"{duration(section.sum_ns):>10}{duration(section.self_ns):>10}"
        where = f"  in {section.inside}" if section.inside else ""
        lines.append([(line, ""), ("  concurrent" if _is_elsewhere(section) else where, "dim")])
    return lines
