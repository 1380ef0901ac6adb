"""What do the events since the last mark mean for tables, metrics, spans and accounts?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import ids, names
from otel_mlperf.agent.batch import INTERRUPTED, Batch, remember_ended
from otel_mlperf.agent.cells import aggregate_rows
from otel_mlperf.agent.kept import Kept, section_entry
from otel_mlperf.agent.outside import Outside, Section, outside_row
from otel_mlperf.agent.policy import INTERRUPTED as WAS_INTERRUPTED
from otel_mlperf.agent.policy import PART, Policy, reason_to_keep
from otel_mlperf.agent.rollup import within_budget
from otel_mlperf.agent.series import Meter
from otel_mlperf.agent.state import Ended, JournalState, RankState, Root
from otel_mlperf.agent.steps import StepFacts, StepRows, gather, sections_by_name, step_row
from otel_mlperf.journal.layout import Flag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.agent.tables import Tables
    from otel_mlperf.journal.reader import Rows

_ALWAYS: Final = (names.RUN, names.EPOCH, names.PHASE, names.CHECKPOINT)
"""Categories outside steps that are few, and the frame of the rest: kept while there is room."""


_MOST_ERRORS: Final = 64


class Outcome:
    """What became of the span items of one journal at one mark."""

    def __init__(self, created: int = 0, failed: int = 0) -> None:
        self.created, self.failed = created, failed
        self.unselected = self.rolled_up = 0
        self.kept: list[Kept] = []


class Worker:
    """Works out one journal at one mark."""

    def __init__(
        self,
        journal: JournalState,
        rank: RankState,
        policy: Policy,
        tables: Tables,
        *,
        explicit: bool = False,
    ) -> None:
        self._journal, self._rank, self._policy, self._tables = journal, rank, policy, tables
        self._meter = Meter(rank, explicit=explicit)
        self._batch = Batch(journal)
        self._budget = policy.spans_of_rank(journal.meta.world_size)
        self._outcome = Outcome()

    def work(self) -> Outcome:
        """Everything that can be said now; rows of open steps wait in the state."""
        journal, batch = self._journal, self._batch
        self._outcome.created = batch.created
        journal.sections += batch.created
        self._follow_errors()
        self._aggregates()
        steps = self._steps(batch.steps)
        self._values()
        outside = Outside(journal, batch.outside)
        for section in outside.sections(steps):
            self._outside(section, outside.ancestors(section.span))
        remember_ended(journal)
        return self._outcome

    def _aggregates(self) -> None:
        for row in aggregate_rows(self._journal):
            self._tables.add("sections", row)
            labels = {
                names.SECTION_NAME: row["name"],
                names.SECTION_CATEGORY: row["category"],
                names.ML_PHASE: row["phase"],
            }
            self._meter.add(names.SECTION_SELF_TIME, labels, row["sum_ns"] / 1e9)
            key = f"{row['parent']}/{row['phase']}"
            self._rank.debt_ns[key] = self._rank.debt_ns.get(key, 0) + row["sum_ns"]

    # -- steps

    def _steps(self, rows: Rows) -> list[StepFacts]:
        if not len(rows):
            return []
        journal = self._journal
        roots = np.unique(rows["root"])
        known = [journal.roots.get(r) or journal.ended[r].root for r in roots.tolist()]
        found = gather(rows, roots, np.array([root.track for root in known], np.uint64))
        facts: list[StepFacts] = []
        kept: dict[int, str | None] = {}
        for step in self._facts(found, roots, known):
            kept[step.span] = self._end_step(step)
            facts.append(step)
        for root in set(roots.tolist()) - kept.keys():
            kept[root] = journal.ended[root].kept
        self._record_durations(facts)
        measured = [(int(r), root) for r, root in zip(roots.tolist(), known, strict=True)]
        interrupted = {step.span for step in facts if step.interrupted}
        self._measure(_without(found, roots, interrupted), measured)
        for i, root in enumerate(roots.tolist()):
            self._keep_step(found.rows[found.step == i], known[i], root, kept[root])
        return [step for step in facts if not step.interrupted]

    def _facts(
        self, found: StepRows, roots: NDArray[np.uint64], known: list[Root]
    ) -> list[StepFacts]:
        own = np.flatnonzero(found.rows["span"] == found.rows["root"])
        facts = []
        for i in own[np.argsort(found.rows["end"][own])].tolist():
            row, span = found.rows[i], int(found.rows["span"][i])
            payload = self._batch.peek(span)
            excluded = int(payload.get("x") or 0)
            flags = int(row["flags"])
            facts.append(
                StepFacts(
                    span=span,
                    root=known[int(found.step[i])],
                    start=int(row["start"]),
                    end=int(max(row["end"], row["start"])),
                    duration_ns=max(0, int(found.duration_ns[i]) - excluded),
                    self_ns=max(0, int(found.self_ns[i]) - excluded),
                    samples=payload.get("n"),
                    tokens=payload.get("t"),
                    epoch=(payload.get("a") or {}).get(names.TRAINING_EPOCH),
                    error=bool(flags & Flag.ERROR),
                    interrupted=bool(flags & INTERRUPTED),
                )
            )
        return facts

    def _end_step(self, step: StepFacts) -> str | None:
        """Measures an ended step; why it is kept, or None."""
        journal, root = self._journal, step.root
        journal.roots.pop(step.span, None)
        if step.interrupted:
            kept: str | None = WAS_INTERRUPTED
        else:
            labels = {names.ML_PHASE: root.phase}
            kept = reason_to_keep(
                self._policy, self._rank, root.phase, root.n, step.duration_ns, step.end,
                error=step.error,
            )  # fmt: skip
            if kept:
                mark = (step.end + self._shift, root.trace, step.span)
                self._meter.exemplar(names.STEP_DURATION, labels, step.duration_ns, mark)
            self._count_step(step, labels)
            self._tables.add("steps", step_row(step, journal, kept))
        journal.ended[step.span] = Ended(root, kept)
        return kept

    def _record_durations(self, steps: list[StepFacts]) -> None:
        """The steps of a mark in one go: a histogram costs as much for one value as for many."""
        by_phase: dict[str, list[int]] = {}
        for step in steps:
            if not step.interrupted:
                by_phase.setdefault(step.root.phase, []).append(step.duration_ns)
        for phase, durations in by_phase.items():
            self._meter.record(names.STEP_DURATION, {names.ML_PHASE: phase}, np.array(durations))

    def _count_step(self, step: StepFacts, labels: dict[str, str]) -> None:
        meter = self._meter
        meter.add(names.STEPS, labels, 1)
        if step.samples is not None:
            meter.add(names.SAMPLES, labels, step.samples)
        if step.tokens is not None:
            meter.add(names.TOKENS, labels, step.tokens)
        meter.set(names.STEP_NUMBER.name, labels, step.root.number)
        meter.set(names.LAST_STEP_TIME.name, {}, (step.end + self._shift) / 1e9)
        section = section_entry(self._journal, step.root.name)
        own = {
            names.SECTION_NAME: section[1],
            names.SECTION_CATEGORY: section[2],
            names.ML_PHASE: step.root.phase,
        }
        self._self_time(own, step.self_ns)

    def _measure(self, found: StepRows, steps: list[tuple[int, Root]]) -> None:
        """Sections of steps: per-step rows, histograms, self time."""
        self._tables.add_step_sections(sections_by_name(found, self._journal, steps))
        inner = found.rows["span"] != found.rows["root"]
        name, duration = found.rows["name"][inner], found.duration_ns[inner]
        own, beside = found.self_ns[inner], found.beside[inner]
        for number in np.unique(name).tolist():
            of_name = name == number
            labels = self._labels(number)
            self._meter.record(names.SECTION_DURATION, labels, duration[of_name])
            self._self_time(labels, int(own[of_name & ~beside].sum()))

    def _keep_step(self, rows: Rows, root: Root, span: int, reason: str | None) -> None:
        if reason is None:
            self._outcome.unselected += len(rows)
            return
        spans = [self._kept(row, root, reason) for row in rows]
        for kept in spans:
            if kept.span == span:
                kept.parent = 0
                if root.parent:
                    run = ids.run_trace_id(self._journal.meta.run_id, self._journal.meta.restart)
                    kept.links = [(run.to_bytes(16, "big"), root.parent)]
        final = within_budget(spans, self._budget)
        self._outcome.rolled_up += len(spans) - sum(k.kind == "section" for k in final)
        self._outcome.kept += final

    # -- outside steps

    def _outside(self, section: Section, ancestors: list[int]) -> None:
        journal, rank = self._journal, self._rank
        _, name, category, phase, _ = section_entry(journal, section.name)
        if not section.interrupted:
            self._tables.add_outside(outside_row(section, journal))
            duration = np.array([section.end - section.start])
            labels = self._labels(section.name) | {names.ML_PHASE: ""}
            self._meter.record(names.SECTION_DURATION, labels, duration)
            self._self_time(labels, section.self_ns)
        if section.span == journal.meta.run_span and not journal.meta.is_child:
            self._end_run(section)
        reason = self._reason(section, name, category)
        room = self._budget * (2 if category in _ALWAYS or section.interrupted else 1)
        if reason is None or rank.run_spans >= room:
            self._outcome.unselected += 1
            self._batch.payload(section.span)
            return
        rank.run_spans += 1
        journal.forced = [s for s in journal.forced if s != section.span]
        journal.forced += [s for s in ancestors if s not in journal.forced]
        self._outcome.kept.append(self._kept_outside(section, phase, reason))

    def _reason(self, section: Section, name: str, category: str) -> str | None:
        rank = self._rank
        index = rank.seen.get(name, 0)
        rank.seen[name] = index + 1
        reason = reason_to_keep(
            self._policy, rank, f"section {name}", index, section.end - section.start,
            section.end, error=section.error,
        )  # fmt: skip
        if section.interrupted:
            return WAS_INTERRUPTED
        if category in _ALWAYS:
            return reason or names.RUN
        return reason or (PART if section.span in self._journal.forced else None)

    def _kept_outside(self, section: Section, phase: str, reason: str) -> Kept:
        journal, meta = self._journal, self._journal.meta
        root = journal.roots.get(section.root)
        if root is not None:
            trace = root.trace
        elif section.root == meta.run_span:
            trace = ids.run_trace_id(meta.run_id, meta.restart).to_bytes(16, "big")
        else:
            trace = ids.lone_trace_id(meta.run_id, section.root).to_bytes(16, "big")
        return Kept(
            journal=journal,
            span=section.span,
            parent=section.parent if section.parent != section.span else 0,
            trace=trace,
            start=section.start,
            end=section.end,
            name=section.name,
            track=section.track,
            root=section.root,
            reason=reason,
            error=section.error,
            interrupted=section.interrupted,
            payload=self._batch.payload(section.span),
        )

    def _end_run(self, section: Section) -> None:
        journal = self._journal
        payload = self._batch.peek(section.span)
        journal.ended_ns = section.end
        error = payload.get("e") or []
        journal.outcome = _outcome(section, error)
        journal.error = [str(word) for word in error[:2]]
        # The run's own row has moved the error from the run span to what is around it.
        root = journal.roots.get(section.span)
        began = journal.errors.get(root.parent if root else section.parent)
        if journal.outcome != "finished" and began and began[0] != names.SPAN_RUN:
            journal.error_section, journal.error_step = began
        results = payload.get("a") or {}
        journal.result = {
            key.removeprefix(names.RESULT): value
            for key, value in results.items()
            if key.startswith(names.RESULT)
        }

    # -- both

    def _kept(self, row: Any, root: Root, reason: str) -> Kept:
        flags, span = int(row["flags"]), int(row["span"])
        payload = self._batch.payload(span)
        return Kept(
            journal=self._journal,
            span=span,
            parent=int(row["parent"]),
            trace=root.trace,
            start=int(row["start"]),
            end=int(max(row["end"], row["start"])),
            name=int(row["name"]),
            track=int(row["track"]),
            root=int(row["root"]),
            reason=reason,
            error=bool(flags & Flag.ERROR),
            interrupted=bool(flags & INTERRUPTED),
            payload=payload,
            n=root.n,
            number=root.number,
            epoch=(payload.get("a") or {}).get(names.TRAINING_EPOCH),
        )

    def _values(self) -> None:
        journal = self._journal
        values = self._batch.values
        numbers = values["end"].copy().view(np.float64)
        for row, value in zip(values.tolist(), numbers.tolist(), strict=True):
            time, _, _, number, _, _, name = row[:7]
            _, called, _, phase, _ = section_entry(journal, name)
            self._tables.add(
                "values",
                {
                    "rank": journal.meta.rank,
                    "restart": journal.meta.restart,
                    "phase": phase,
                    "name": called,
                    "number": number - (1 << 64) if number >> 63 else number,
                    "time_ns": time + self._shift,
                    "value": value,
                },
            )
            metric = names.LOGGED.get(called)
            self._meter.set(
                metric.name if metric else names.user_metric(called),
                {names.ML_PHASE: phase} if phase else {},
                value,
            )

    def _follow_errors(self) -> None:
        """Follows each error on its way up, so that the run's end knows where it began."""
        journal = self._journal
        rows = np.concatenate((self._batch.steps, self._batch.outside))
        rows = rows[rows["flags"] & Flag.ERROR != 0]
        for i in np.lexsort((-rows["start"].astype(np.int64), rows["end"])).tolist():
            row = rows[i]
            root = journal.roots.get(int(row["root"]))
            number = root.number if root is not None and root.kind == "step" else None
            name = section_entry(journal, int(row["name"]))[1]
            began = journal.errors.pop(int(row["span"]), [name, number])
            above = root.parent if root and row["span"] == row["root"] else int(row["parent"])
            journal.errors[above] = began
        for span in list(journal.errors)[:-_MOST_ERRORS]:
            del journal.errors[span]

    def _self_time(self, labels: dict[str, str], self_ns: int) -> None:
        """Adds self time, less what aggregated sections inside have taken of it."""
        debts, key = self._rank.debt_ns, f"{labels[names.SECTION_NAME]}/{labels[names.ML_PHASE]}"
        paid = min(debts.get(key, 0), self_ns)
        if paid:
            debts[key] -= paid
        self._meter.add(names.SECTION_SELF_TIME, labels, (self_ns - paid) / 1e9)

    def _labels(self, number: int) -> dict[str, str]:
        _, name, category, phase, _ = section_entry(self._journal, number)
        return {
            names.SECTION_NAME: name,
            names.SECTION_CATEGORY: category,
            names.ML_PHASE: phase,
        }

    @property
    def _shift(self) -> int:
        return self._journal.meta.unix_ns - self._journal.meta.monotonic_ns


def _outcome(section: Section, error: list[Any]) -> str:
    if section.interrupted:
        return "killed"
    if not section.error:
        return "finished"
    return "interrupted" if error and error[0] in ("KeyboardInterrupt", "SystemExit") else "failed"


def _without(found: StepRows, roots: NDArray[np.uint64], interrupted: set[int]) -> StepRows:
    if not interrupted:
        return found
    stays = ~np.isin(found.rows["root"], np.array(sorted(interrupted), np.uint64))
    return StepRows(*(column[stays] for column in found))  # type: ignore[arg-type]  # in order
