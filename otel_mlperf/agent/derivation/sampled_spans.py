"""Selection of the spans of one journal at one mark: of steps, of requests, and of the run's trace.

A step or request is a trace of its own, sampled with all sections inside, within a budget. Other
sections outside steps are sampled individually, by name.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.new_rows import INTERRUPTED_FLAG
from otel_mlperf.agent.derivation.rollup import within_budget
from otel_mlperf.agent.derivation.step_rows import epoch_of
from otel_mlperf.agent.model.journal_state import RecentStep, SampledStep
from otel_mlperf.agent.model.kept_span import SampledSpan
from otel_mlperf.agent.model.sampling import INTERRUPTED, PART, reason_to_keep
from otel_mlperf.journal.layout import Flag
from otel_mlperf.journal.ring_scan import ROW_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.agent.derivation.gpu_times import DerivedGpuTimes
    from otel_mlperf.agent.derivation.new_rows import NewRows
    from otel_mlperf.agent.derivation.outside_sections import OutsideSection, OutsideSections
    from otel_mlperf.agent.derivation.step_rows import DerivedSteps, EndedStep
    from otel_mlperf.agent.model.agent_state import RankState
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.agent.model.sampling import Policy
    from otel_mlperf.journal.ring_scan import Rows

_ALWAYS: Final = (names.RUN, names.EPOCH, names.PHASE, names.CHECKPOINT)
"""Rare categories that give the run's trace its structure: sampled up to twice the budget."""
_PATIENCE: Final = 20
"""Maximum number of marks that the spans of a step wait for their GPU times."""


def sample_steps(
    ended: Sequence[EndedStep], policy: Policy, rank: RankState, state: JournalState
) -> list[EndedStep]:
    """Decide for each ended step whether it is sampled; return all, with the reason in ``kept``.

    The steps are moved from ``state.roots`` to ``state.ended``. ``ended`` must be sorted by end,
    because each step is compared with earlier steps.
    """
    sampled = []
    for step in ended:
        root = step.root
        kept: str | None = INTERRUPTED
        if not step.interrupted:
            kept = reason_to_keep(
                policy, rank, root.phase, root.n, step.duration_ns, step.end,
                error=step.error, profiled=step.profiled,
            )  # fmt: skip
        state.roots.pop(step.span, None)
        state.ended[step.span] = RecentStep(root, kept, step.end)
        sampled.append(step._replace(kept=kept))
    return sampled


class SpanSelection:
    """Sampled spans of one journal, and the number of unselected and of rolled-up sections."""

    def __init__(
        self, policy: Policy, rank: RankState, state: JournalState, batch: NewRows
    ) -> None:
        """Initialize without spans. ``batch`` contains the payloads of the rows."""
        self._policy, self._rank, self._state, self._batch = policy, rank, state, batch
        self._budget = policy.spans_of_rank(state.meta.world_size)
        self.spans: list[SampledSpan] = []
        self.unselected = self.rolled_up = 0

    def add_steps(self, steps: DerivedSteps) -> None:
        """Add the rows of sampled steps as spans.

        Steps with pending GPU times are stored for later.
        """
        rows, step = steps.sections.rows, steps.sections.step
        ends = np.searchsorted(step, np.arange(len(steps.ids)), side="right").tolist()
        bounds = pairwise([0, *ends])
        for span, root, (start, end) in zip(steps.ids, steps.roots, bounds, strict=True):
            reason = self._state.ended[span].kept
            if reason is None:
                self.unselected += end - start
                continue
            mine = rows[start:end]
            payloads = {
                row: payload
                for row in mine["span"].tolist()
                if (payload := self._batch.take_payload(row))
            }
            sampled = SampledStep(root, reason, mine.tobytes(), payloads)
            if _awaits_device_times(mine, span):
                self._state.steps_awaiting_gpu[span] = sampled
            else:
                self._add_step(span, sampled)

    def add_outside(self, outside: OutsideSections) -> None:
        """Add sections outside steps: requests as whole traces, all other sections individually."""
        in_requests = self._add_requests(outside.ended)
        for section in outside.ended:
            if section.root not in in_requests:
                self._add_section(section, outside)

    def add_gpu_times(self, gpu: DerivedGpuTimes) -> None:
        """Add spans of steps that no longer wait for GPU times; set reported times of all spans."""
        waiting = self._state.steps_awaiting_gpu
        for span, step in [*waiting.items()]:
            if gpu.figures:
                found = gpu.figures.keys() & _spans(step)
                step.figures.update({one: gpu.figures[one] for one in found})
            step.marks += 1
            if span in gpu.reported or self._state.left or step.marks > _PATIENCE:
                del waiting[span]
                self._add_step(span, step)
        if gpu.figures:  # sections outside steps whose times arrived at the same mark
            for sampled in self.spans:
                sampled.gpu = sampled.gpu or gpu.figures.get(sampled.span, {})

    def _add_step(self, span: int, step: SampledStep) -> None:
        root, meta, rows = step.root, self._state.meta, np.frombuffer(step.rows, ROW_TYPE)
        budget = self._policy.spans_of_step(meta.rank, meta.world_size, root.trace, step.reason)
        if budget == 1:
            self.unselected += int((rows["span"] != span).sum())
            rows = rows[rows["span"] == span]
        spans = [_span_in_step(row, step, self._state) for row in rows]
        for sampled in spans:
            if sampled.span == span:
                sampled.parent = 0
                if root.parent:
                    sampled.links = [(self._state.run_trace, root.parent)]
        self._add_within(spans, budget)

    def _add_requests(self, sections: Sequence[OutsideSection]) -> set[int]:
        own = [section for section in sections if self._is_request(section)]
        inside: dict[int, list[OutsideSection]] = {request.root: [] for request in own}
        for section in sections if own else ():
            if section.root in inside:
                inside[section.root].append(section)
        for request in own:
            self._add_request(request, inside[request.root])
        return set(inside)

    def _is_request(self, section: OutsideSection) -> bool:
        is_root = section.span == section.root
        return is_root and self._state.section(section.name)[2] == names.REQUEST

    def _add_request(self, request: OutsideSection, members: list[OutsideSection]) -> None:
        reason, rank = self._reason(request), self._rank
        # Many requests may have been open when their process died: only the first ones are sampled.
        if request.interrupted:
            reason = reason if rank.run_spans < 2 * self._budget else None
            rank.run_spans += len(members)
        if reason is None:
            self.unselected += len(members)
            return
        spans = [self._span(member, reason) for member in members]
        for sampled in spans:
            if sampled.span == request.span:
                sampled.parent = 0
                if request.parent:
                    run = self._state.trace_of(self._state.meta.run_span)
                    sampled.links = [(run, request.parent)]
        self._add_within(spans, self._budget)

    def _add_section(self, section: OutsideSection, outside: OutsideSections) -> None:
        rank, forced = self._rank, self._state.forced
        reason = self._reason(section)
        is_frame = self._state.section(section.name)[2] in _ALWAYS or section.interrupted
        if reason is None or rank.run_spans >= self._budget * (2 if is_frame else 1):
            self.unselected += 1
            return
        rank.run_spans += 1
        forced.discard(section.span)
        forced.update(outside.ancestors(section.span, forced))
        self.spans.append(self._span(section, reason))

    def _reason(self, section: OutsideSection) -> str | None:
        rank, (_, name, category, _, _) = self._rank, self._state.section(section.name)
        index = rank.seen.get(name, 0)
        rank.seen[name] = index + 1
        reason = reason_to_keep(
            self._policy, rank, f"section {name}", index, section.duration_ns, section.end,
            error=section.error, profiled=section.profiled or category == names.PROFILER,
        )  # fmt: skip
        if section.interrupted:
            return INTERRUPTED
        if category in _ALWAYS:
            return reason or names.RUN
        return reason or (PART if section.span in self._state.forced else None)

    def _add_within(self, spans: list[SampledSpan], budget: int) -> None:
        sent = within_budget(spans, budget)
        self.rolled_up += len(spans) - sum(sampled.kind == "section" for sampled in sent)
        self.spans += sent

    def _span(self, section: OutsideSection, reason: str) -> SampledSpan:
        state, rank = self._state, self._rank
        sampled = SampledSpan(
            journal=state,
            span=section.span,
            parent=section.parent if section.parent != section.span else 0,
            trace=state.trace_of(section.root),
            start=section.start,
            end=section.end,
            name=section.name,
            track=section.track,
            root=section.root,
            reason=reason,
            error=section.error,
            interrupted=section.interrupted,
            payload=self._batch.take_payload(section.span),
        )
        if section.span == state.meta.run_span:
            sampled.marks, sampled.marks_left_out = sorted(rank.marks), rank.marks_left_out
        return sampled


def _span_in_step(row: Any, step: SampledStep, state: JournalState) -> SampledSpan:
    flags, span, root = int(row["flags"]), int(row["span"]), step.root
    payload = step.payloads.get(span, {})
    return SampledSpan(
        journal=state,
        span=span,
        parent=int(row["parent"]),
        trace=root.trace,
        start=int(row["start"]),
        end=int(max(row["end"], row["start"])),
        name=int(row["name"]),
        track=int(row["track"]),
        root=int(row["root"]),
        reason=step.reason,
        error=bool(flags & Flag.ERROR),
        interrupted=bool(flags & INTERRUPTED_FLAG),
        payload=payload,
        gpu=step.figures.get(span, {}),
        n=root.n,
        number=root.number,
        epoch=epoch_of(payload),
    )


def _awaits_device_times(rows: Rows, span: int) -> bool:
    own = rows["span"] == span
    return bool((rows["flags"][own] & Flag.ON_DEVICE).any())


def _spans(waiting: SampledStep) -> set[int]:
    return set(np.frombuffer(waiting.rows, ROW_TYPE)["span"].tolist())
