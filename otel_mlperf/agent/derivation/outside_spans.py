"""Which sections outside steps are kept as spans?

Each by its name; a request, which is a trace of its own, with all that is inside it or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.agent.derivation.rollup import within_budget
from otel_mlperf.agent.model.kept_span import Kept
from otel_mlperf.agent.model.sampling import INTERRUPTED, PART, reason_to_keep

if TYPE_CHECKING:
    from otel_mlperf.agent.derivation.mark_task import MarkTask
    from otel_mlperf.agent.derivation.outside_sections import OutsideSection, OutsideSections

_ALWAYS: Final = (names.RUN, names.EPOCH, names.PHASE, names.CHECKPOINT)
"""Categories outside steps that are few, and the frame of the rest: kept while there is room."""


def keep_requests(task: MarkTask, sections: list[OutsideSection]) -> set[int]:
    """Decides on the requests that ended, each with all that is inside it; returns their roots."""
    own = [section for section in sections if _is_request(task, section)]
    inside: dict[int, list[OutsideSection]] = {request.root: [] for request in own}
    for section in sections if own else ():
        if section.root in inside:
            inside[section.root].append(section)
    for request in own:
        _keep_request(task, request, inside[request.root])
    return set(inside)


def _is_request(task: MarkTask, section: OutsideSection) -> bool:
    """Whether it is one that is a trace of its own: not in a step, nor in another request."""
    return section.span == section.root and task.entry(section.name)[2] == names.REQUEST


def _keep_request(task: MarkTask, request: OutsideSection, members: list[OutsideSection]) -> None:
    rank, (_, name, category, _, _) = task.rank, task.entry(request.name)
    reason = _reason(task, request, name, category)
    # Of many that were open when their process died, not all say more than the first.
    if request.interrupted:
        reason = reason if rank.run_spans < 2 * task.budget else None
        rank.run_spans += len(members)
    if reason is None:
        task.outcome.unselected += len(members)
        return
    spans = [_kept(task, member, reason) for member in members]
    for kept in spans:
        if kept.span == request.span:
            kept.parent = 0
            if request.parent:
                kept.links = [(task.journal.trace_of(task.journal.meta.run_span), request.parent)]
    final = within_budget(spans, task.budget)
    task.outcome.rolled_up += len(spans) - sum(kept.kind == "section" for kept in final)
    task.outcome.kept += final
    if not request.interrupted:
        mark = (request.end + task.journal.meta.shift_ns, spans[0].trace, request.span)
        labels = task.labels(request.name, phase="")
        task.meter.exemplar(names.SECTION_DURATION, labels, request.duration_ns, mark)


def keep(task: MarkTask, section: OutsideSection, outside: OutsideSections) -> None:
    """Decides on one that is part of the run's trace, or of somebody else's."""
    journal, rank = task.journal, task.rank
    _, name, category, _, _ = task.entry(section.name)
    reason = _reason(task, section, name, category)
    room = task.budget * (2 if category in _ALWAYS or section.interrupted else 1)
    if reason is None or rank.run_spans >= room:
        task.outcome.unselected += 1
        return
    rank.run_spans += 1
    journal.forced.discard(section.span)
    journal.forced.update(outside.ancestors(section.span, journal.forced))
    task.outcome.kept.append(_kept(task, section, reason))


def _reason(task: MarkTask, section: OutsideSection, name: str, category: str) -> str | None:
    rank = task.rank
    index = rank.seen.get(name, 0)
    rank.seen[name] = index + 1
    reason = reason_to_keep(
        task.policy, rank, f"section {name}", index, section.duration_ns, section.end,
        error=section.error, profiled=section.profiled or category == names.PROFILER,
    )  # fmt: skip
    if section.interrupted:
        return INTERRUPTED
    if category in _ALWAYS:
        return reason or names.RUN
    return reason or (PART if section.span in task.journal.forced else None)


def _kept(task: MarkTask, section: OutsideSection, reason: str) -> Kept:
    kept = _span(task, section, reason)
    if section.span == task.journal.meta.run_span:
        kept.marks, kept.marks_left_out = sorted(task.rank.marks), task.rank.marks_left_out
    return kept


def _span(task: MarkTask, section: OutsideSection, reason: str) -> Kept:
    return Kept(
        journal=task.journal,
        span=section.span,
        parent=section.parent if section.parent != section.span else 0,
        trace=task.journal.trace_of(section.root),
        start=section.start,
        end=section.end,
        name=section.name,
        track=section.track,
        root=section.root,
        reason=reason,
        error=section.error,
        interrupted=section.interrupted,
        payload=task.batch.payload(section.span),
    )
