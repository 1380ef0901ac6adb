"""Terminal rendering of one step or request, with the operators and kernels of its sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.steps.step_shares import UNTRACKED
from otel_mlperf.quantities import duration, plural
from otel_mlperf.report.gpu_lines import step_gpu_words
from otel_mlperf.report.span_lines import LEGEND, span_lines
from otel_mlperf.terminal_lines import WIDTH, Line, columns, folded, left, short, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.steps.step_shapes import (
        RankStep,
        RankTrace,
        RequestTrace,
        RunTrace,
        StepFindings,
        StepSection,
    )

_SECTION: Final = 34
_NOT_KEPT: Final = "measured, not sampled (the first, every Nth and slow steps are)"
_UNSAID: Final = "as profiled"
"""Replaces the phase if only the profiler reported the step."""
_RANKS: Final = 16
_LEAST_OUTSIDE: Final = 0.001
"""Minimum part of a step's time for time outside it to be mentioned."""
_ADDED_UP: Final = "added up, without spans: their own time is a part of the self times above"


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
        line = f"the slowest sampled step; --step N shows another: {others}"
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
    title = f" · run {trace.short_id} · no step: the run itself and its sections"
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
    which = "the slowest with spans" if request.chosen else f"sampled: {request.kept}"
    hint = f"{which}; --request 1 to {request.kept_requests:,} shows another by its start"
    lines.append([(short(hint, width), "dim")])
    facts = f"number {request.number:,} · {duration(request.duration_ns)}"
    lines += [[(facts, "")], *span_lines(request.spans, width)]
    return text(lines, color=color, unicode=unicode)


def _foot(shown: Sequence[RankStep] | Sequence[RankTrace], ranks: int) -> list[Line]:
    lines: list[Line] = []
    if any(span.operators for of_rank in shown for span in of_rank.spans):
        lines.append([(LEGEND, "dim")])
    if ranks > len(shown):
        lines.append([(f"and {plural(ranks - len(shown), 'rank')} more: --rank N", "dim")])
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
    return [[("  ", ""), (short(f"marked {marks}", width - 2), "dim")]]


def _outside(rank: RankStep) -> str:
    """Return the time within the step's span that does not belong to the step."""
    if rank.outside_ns < _LEAST_OUTSIDE * rank.duration_ns:
        return ""
    what = f": {', '.join(rank.outside)}" if rank.outside else ""
    return f" ({duration(rank.outside_ns)} of its span outside it{what})"


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
