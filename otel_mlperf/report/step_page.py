"""Terminal rendering of one step or request, with the operators and kernels of its sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.profiles.section_operators import add_up
from otel_mlperf.analysis.steps.step_shares import UNTRACKED, shown
from otel_mlperf.quantities import duration, plural, size_and_rate
from otel_mlperf.report.kernel_names import short_names
from otel_mlperf.report.machine_lines import step_gpu_words
from otel_mlperf.report.section_tables import used_words
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
"""Columns for a name if there are ``WIDTH`` in all."""
_CHART: Final = (8, 60)
_SAME: Final = 5
"""Maximum number of equally named sections in a row that are shown singly."""
_MOST_NAMES: Final[dict[Place, int]] = {"here": 4, "beside": 2, "device": 2}
"""Maximum number of displayed names per place."""
_ALONE: Final = 8
"""Maximum number for one place, if no operator ran elsewhere."""
_LEAST_OWN: Final = 0.01
"""Minimum share of a section's own time outside operators to be shown."""
_WORDS: Final[dict[Place, str]] = {
    "here": "",
    "beside": "  on other threads",
    "device": "  on the device",
}
_TIME: Final = 10
_NOT_THE_PROGRAMS: Final = (
    *("otel_mlperf.", "otel.", "ml.", "pytorch.", "cuda.", "exception.", "error.", "code."),
    "thread.",
)
"""Prefixes of attributes that do not come from the program."""


def span_lines(spans: list[Span], width: int) -> list[Line]:
    """Return a line per span, with profiled operators below it and a chart of its time."""
    begin = min(span.start_ns for span in spans)
    whole = max(max(span.start_ns + span.duration_ns for span in spans) - begin, 1)
    name, chart = _rooms(spans, width)
    title = f"  {left('span', name)}{'time':>{_TIME}}{'self':>{_TIME}}"
    lines: list[Line] = [[(title, "dim")]]
    for at, span in enumerate(spans):
        # Merge loops: hundreds of equal sections would hide the rest of the step.
        if (row := _place_in_row(spans, at)) > _SAME:
            continue
        more = _others(spans, at) if row == _SAME else []
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
    """Return the columns for names and chart; on a wide terminal names get what they need."""
    more = width - WIDTH
    longest = max(len(_indent(span)) + columns(_label(span, spans[0].thread)) for span in spans)
    name = _NAME + (more // 2 if more < 0 else min(more // 2, max(0, longest - _NAME)))
    least, most = _CHART
    return name, max(least, min(most, width - name - 2 * _TIME - 4))


def _operators(spans: list[Span], at: int, name: int) -> list[Line]:
    """Return the operators under a span; merged leaves have theirs below the last one."""
    span, alike = spans[at], [spans[at]]
    if _is_leaf(spans, at):
        place, after = _place_in_row(spans, at), _others(spans, at)[1:]
        if after and place < _SAME:
            return []
        alike = [*spans[at - place : at + 1], *after]
    operators = add_up(leaf.operators for leaf in alike)
    own = sum(leaf.self_ns for leaf in alike)
    indent = 2 * min(span.depth, 10) + 2
    return _operator_lines(operators, own, indent, name)


def _label(span: Span, home: str) -> str:
    """Return its name, and its thread unless it is the outermost thread, ``home``."""
    name = shown(span.name)
    count = span.attributes.get(names.ROLLED_UP)
    name = f"{name} ×{count:,}" if count else name
    # A forked child's threads have the names of its parent's threads.
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
    """Return how many leaves of the same name and depth directly precede this one."""
    span, before = spans[at], 0
    if not _is_leaf(spans, at):
        return 0
    while before <= _SAME and at - before > 0 and _same(spans, at - before - 1, span):
        before += 1
    return before


def _others(spans: list[Span], at: int) -> list[Span]:
    """Return the leaves of the same name from here onward, if there are several."""
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
    """Return the measured resource use of the span."""
    used = used_words(span.attributes)
    indent = "    " + _indent(span)
    parts = wrapped("", used, width - len(indent), " · ") if used else []
    return [[(indent + part, "dim")] for part in parts]


def _value_lines(span: Span, width: int) -> list[Line]:
    """Return the attributes that the program set, and a checkpoint's own ones."""
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
    """Return the exception that crossed a span, only at the innermost span that it crossed."""
    message = _words(spans[at])
    below = at + 1
    while below < len(spans) and spans[below].depth > spans[at].depth:
        # An exception passes through all enclosing sections: print it once, at its origin.
        if _words(spans[below]) == message:
            return []
        below += 1
    indent = "    " + _indent(spans[at])
    return [[(indent + short(message, width - len(indent)), "red")]] if message else []


def _words(span: Span) -> str:
    if span.attributes.get(names.INTERRUPTED):
        return "still open when the process ended"
    keys = (names.EXCEPTION_TYPE, names.EXCEPTION_MESSAGE)
    return ": ".join(str(span.attributes[key]) for key in keys if span.attributes.get(key))


def _operator_lines(
    operators: Sequence[Operator], self_ns: int, indent: int, width: int
) -> list[Line]:
    """Return the largest operators of each place, and the sum of the rest.

    Operators on the section's thread are a part of its ``self_ns``; the remainder was in no
    operator.
    """
    lines: list[Line] = []
    for place, few in _MOST_NAMES.items():
        mine = [operator for operator in operators if operator.place == place]
        most = _ALONE if len(mine) == len(operators) else few
        rows = _rows(mine, most if len(mine) > most + 1 else len(mine), width - indent)
        own = self_ns - sum(operator.self_ns for operator in mine)
        if mine and place == "here" and own >= _LEAST_OWN * self_ns > 0:
            rows.append(("outside operators", own))
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


_SECTION: Final = 34
_NOT_KEPT: Final = "measured, not sampled (the first, every Nth and slow steps are)"
_UNSAID: Final = "from the profiler only"
"""Replaces the phase if only the profiler reported the step."""
_RANKS: Final = 16
_LEAST_OUTSIDE: Final = 0.001
"""Minimum part of a step's time for time outside it to be mentioned."""
_ADDED_UP: Final = "aggregated sections (no spans): their time is part of the self times above"


def render_step(
    step: StepFindings, *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Render the spans of each rank that sampled them as a tree; else the measured sections."""
    epoch = f" · epoch {step.epoch}" if step.epoch is not None else ""
    title = f"step {step.number}"
    lines: list[Line] = [
        [(title, "bold"), (f" · {step.phase or _UNSAID}{epoch} · run {step.short_id}", "")],
        [(f"trace {step.trace_id}", "dim")],
    ]
    if step.chosen:
        others = ", ".join(map(str, step.kept))
        line = f"slowest sampled step; other sampled steps (--step N): {others}"
        lines.append([(short(line, width), "dim")])
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
    """Return all ranks; of very many, the failed, sampled or slowest ones, sorted by rank."""
    return sorted(sorted(ranks, key=_weight)[-_RANKS:], key=lambda of: of.rank)


def _weight(of: RankStep) -> tuple[bool, bool, bool, int, int]:
    return of.is_error, of.kept is not None, len(of.spans) > 1, of.duration_ns, -of.rank


def _has_only_root(rank: RankStep) -> bool:
    """Return whether a trace of very many ranks had no room for the rank's sections."""
    return len(rank.spans) == 1 and any(one.name != UNTRACKED for one in rank.sections)


def render_run_trace(
    trace: RunTrace, *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Render the run and its sections, rank by rank, as a tree."""
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


def _heading(rank: RankStep, others_kept: bool) -> Line:
    facts = [duration(rank.duration_ns) + _outside(rank)]
    facts += [f"{rank.samples:,} samples"] if rank.samples is not None else []
    facts += [f"{rank.tokens:,} tokens"] if rank.tokens is not None else []
    facts += step_gpu_words(rank.gpu)
    if rank.kept or others_kept:
        facts.append(f"sampled: {rank.kept}" if rank.kept else "measured, not sampled")
    line: Line = [(f"rank {rank.rank}", "bold"), *((f" · {fact}", "") for fact in facts)]
    return [*line, (" · failed", "red")] if rank.is_error else line


def _marks(rank: RankStep, width: int) -> list[Line]:
    """Return the marks of the program in the step, on a line of their own."""
    if not rank.marks:
        return []
    marks = ", ".join(f"{mark.name} at {duration(mark.after_ns)}" for mark in rank.marks)
    return [[("  ", ""), (short(f"marks: {marks}", width - 2), "dim")]]


def _outside(rank: RankStep) -> str:
    """Return the time within the step's span that does not belong to the step."""
    if rank.outside_ns < _LEAST_OUTSIDE * rank.duration_ns:
        return ""
    what = f": {', '.join(rank.outside)}" if rank.outside else ""
    return f" (its span also contains {duration(rank.outside_ns)} outside the step{what})"


def _added_up(sections: Sequence[StepSection]) -> list[Line]:
    """Return sections without spans, by name and enclosing section."""
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
    """Return whether it ran on another thread or task."""
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
