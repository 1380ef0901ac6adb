"""Findings of gaps in a recording: undetected steps, lost devices, lost records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.run.run_processes import FINISHED
from otel_mlperf.findings.finding import Finding, Where
from otel_mlperf.findings.finding_table import row_of
from otel_mlperf.quantities import plural

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers


def find_losses(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per lost device, and one if records were lost beyond the threshold."""
    summary, row = numbers.summary, row_of("gpu_lost")
    findings = [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(hw_name=loss.name or loss.id),
            action=row.action,
            evidence={"count": loss.count, "after_ns": loss.after_ns},
            where=Where(rank=loss.rank, device=loss.name),
        )
        for loss in summary.losses
    ]
    row, lost = row_of("telemetry_lost"), summary.telemetry.lost
    if lost is not None and row.holds(lost):
        findings.append(
            Finding(
                id=row.id,
                severity=row.severity,
                summary=row.summary.format(value=lost),
                action=row.action,
                evidence={"lost": lost},
                command=f"otel-mlperf doctor {summary.short_id}",
            )
        )
    return findings


_TORCH: Final = "torch"
"""Integration that infers steps; enabled if the user's program has imported torch."""
_PARTS: Final = {
    names.FORWARD: "forward pass",
    names.BACKWARD: "backward pass",
    names.OPTIMIZER: "optimizer step",
}
_PROCESS_ACTION: Final = (
    "Steps are inferred only in the program's main thread and in ranks of a process group. Call "
    "`om.start()` in the function that each process runs, and write `with om.step():` around "
    "one iteration of the loop."
)
_FORK_ACTION: Final = (
    "Call `om.start()` in the process that runs the steps: after the fork, and in a daemon "
    "after it has detached."
)


class _Elsewhere(NamedTuple):
    """Counts of training activity outside detected loops; each is the maximum over the ranks."""

    updates: int
    loops: int
    processes: int

    def words(self, *, is_alone: bool) -> list[str]:
        """Return one phrase per kind of activity with a count above 0.

        Processes are mentioned only in runs without recorded steps (``is_alone``).
        """
        phrases = []
        if self.updates:
            others = "other threads" if is_alone else "threads or asyncio tasks"
            other = "another thread" if is_alone else "a thread or asyncio task"
            loops = f"{self.loops:,} {others}" if self.loops > 1 else other
            phrases.append(f"{_count_text(self.updates, _PARTS[names.OPTIMIZER])} in {loops}")
        if self.processes and is_alone:
            many = "es" if self.processes > 1 else ""
            phrases.append(f"{self.processes:,} process{many} started with multiprocessing")
        return phrases


def find_unseen_steps(numbers: RunNumbers) -> list[Finding]:
    """Return a finding of steps in forked processes, else findings of training outside steps."""
    summary, row = numbers.summary, row_of("unseen_steps")
    forked = _forked_steps(numbers)
    if forked or _TORCH not in summary.integrations:
        return forked
    elsewhere = _read_elsewhere(numbers)
    if summary.steps is not None:
        return _outside_steps(elsewhere)
    calls = _count_calls(numbers)
    # A stopped or running program may not have reached its first update yet.
    if summary.outcome != FINISHED and not row.holds(calls[names.BACKWARD]):
        return []
    others = elsewhere.words(is_alone=True)
    is_training = calls[names.BACKWARD] or calls[names.OPTIMIZER] or others
    seen = ", ".join([*(_count_text(calls[name], word) for name, word in _PARTS.items()), *others])
    return [
        Finding(
            id=row.id,
            severity=row.severity if is_training else "info",
            summary=row.summary.format(seen=seen),
            action=_PROCESS_ACTION if elsewhere.processes and not elsewhere.updates else row.action,
            evidence={name: float(count) for name, count in calls.items()}
            | {name: float(count) for name, count in elsewhere._asdict().items() if count},
        )
    ]


def _forked_steps(numbers: RunNumbers) -> list[Finding]:
    ((steps,),) = numbers.store.rows(
        "SELECT coalesce(sum(count), 0)::BIGINT FROM sections WHERE n IS NULL AND category = $step",
        step=names.STEP,
    )
    row, is_all = row_of("unseen_steps"), numbers.summary.steps is None
    found = Finding(
        id=row.id,
        severity=row.severity if is_all else "info",
        summary=f"processes forked after om.start ran {plural(steps, 'step')}, "
        "recorded as sections of the run and not as steps",
        action=_FORK_ACTION,
        evidence={"forked_steps": float(steps)},
    )
    return [found] if steps else []


def _outside_steps(elsewhere: _Elsewhere) -> list[Finding]:
    row = row_of("unseen_steps")
    return [
        Finding(
            id=row.id,
            severity="info",
            summary=f"{phrase} ran outside all steps",
            action=row.action,
            evidence={"updates": float(elsewhere.updates), "loops": float(elsewhere.loops)},
        )
        for phrase in elsewhere.words(is_alone=False)
    ]


def _read_elsewhere(numbers: RunNumbers) -> _Elsewhere:
    known = (names.OTHER_UPDATES, names.OTHER_LOOPS, names.STARTED_PROCESSES)
    rows = numbers.store.rows(
        "SELECT name, max(value) FROM readings WHERE list_contains($names, name) GROUP BY name",
        names=[metric.name for metric in known],
    )
    read = dict(rows)
    return _Elsewhere(*(int(read.get(metric.name, 0)) for metric in known))


def _count_calls(numbers: RunNumbers) -> dict[str, int]:
    rows = numbers.store.rows(
        "SELECT name, sum(count) FROM sections WHERE list_contains($parts, name) "
        "AND NOT list_contains(string_split(path, '/'), $validation) GROUP BY name",
        parts=[*_PARTS],
        validation=names.VALIDATE,
    )
    counted = {name: round(int(count) / numbers.summary.ranks) for name, count in rows}
    return {name: counted.get(name, 0) for name in _PARTS}


def _count_text(count: int, word: str) -> str:
    return plural(count, word) if count else f"no {word}"
