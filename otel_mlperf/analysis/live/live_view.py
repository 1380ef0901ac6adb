"""Live view of a run, or its final state, merged from journals and the run folder.

Ranks on this node are read from journals, so the state of these ranks is current and requires
neither agent nor server. Other ranks, GPUs and a finished run are read from the run folder, as far
as they are stored there.
"""

from __future__ import annotations

import time
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from otel_mlperf.analysis.live import live_journals, live_store
from otel_mlperf.analysis.live.live_readings import (
    DeviceNow,
    Usage,
    find_devices,
    find_usage,
)
from otel_mlperf.analysis.live.live_requests import RequestsNow, requests_now
from otel_mlperf.analysis.run import item_accounts
from otel_mlperf.analysis.run.given_number import JsonNumber  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.run.run_processes import RUNNING, read_processes
from otel_mlperf.analysis.steps.step_shares import main_phase, read_steps, read_warm_up
from otel_mlperf.analysis.summary.work_figures import read_work
from otel_mlperf.findings.finding import Finding  # noqa: TC001 - msgspec reads it
from otel_mlperf.names.attributes import DATA_LOADING
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.analysis.live.live_journals import Looked, PublishedNow
    from otel_mlperf.analysis.live.live_store import StepSeen, Stored, StoredRank
    from otel_mlperf.store.run_folders import RunFolder

_STORE_EVERY_NS: Final = 5 * 10**9
SPARK_STEPS: Final = 24


class RankNow(msgspec.Struct, frozen=True, kw_only=True):
    """Live state of one rank."""

    rank: int
    host: str
    outcome: str
    step: int | None
    """Number of the step that started last."""
    section: str
    """Innermost open section of the main thread; empty: none, or the rank is on another node."""
    open_ns: int | None
    """Age of that open section."""
    step_ns: list[int]
    """Durations of the last steps, newest last."""
    data_wait: float | None
    """Data wait divided by duration, over the last steps."""
    last_step_ns: int | None
    """Time since the end of the last step."""
    memory_bytes: float | None
    cpus: float | None
    """CPUs in use, by the process and its workers."""


class Live(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="live/1"):
    """Live state of a run."""

    id: str
    short_id: str
    name: str
    outcome: str
    is_seen: bool
    """Whether a process of the run is on this node; only then is the state current."""
    at_ns: int
    duration_ns: int
    world_size: int
    phase: str
    step: int | None
    steps_expected: int | None
    left_ns: int | None
    """Estimated remaining time: remaining steps times the time between steps."""
    mean_ns: float | None
    steps_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    flops_per_s: float | None
    """FLOP/s of all ranks: known operations divided by elapsed time."""
    data_wait: float | None
    last: dict[str, JsonNumber]
    """Last logged value by name."""
    ranks: list[RankNow]
    devices: list[DeviceNow]
    readings_age_ns: int | None
    warnings: list[str]
    """Texts of the current warnings on this node."""
    lost: int | None
    requests: list[RequestsNow] = []
    """Open requests, and those of the last minute, on this node."""
    findings: list[Finding] = []
    """Findings of the run so far, worst first; added by the command that watches the run."""


class _Rates(NamedTuple):
    steps: float | None
    samples: float | None
    tokens: float | None
    flops: float | None


class LiveWatch:
    """Repeated reading of one run's live state."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._stored: Stored | None = None
        self._read_ns = 0
        self._whole: dict[str, Any] | None = None
        """Figures of the whole run; None until the run has ended."""

    def look(self) -> Live:
        """Return the current state of the run or, if the run has ended, the final state.

        Raises:
            StoreError: a file of the run cannot be read.
        """
        now_ns = time.time_ns()
        # Journals must be read before the folder: if no journal exists any more, the folder then
        # contains the outcome.
        looked = live_journals.look(self._run, now_ns)
        # Unlike journals, the folder's tables are too expensive to read each time.
        if self._stored is None or now_ns - self._read_ns >= _STORE_EVERY_NS:
            self._stored, self._read_ns = live_store.read(self._run), now_ns
        elif not looked and self._stored.outcome == RUNNING:
            self._stored, self._read_ns = (
                live_store.read(self._run),
                now_ns,
            )  # the run has just ended
        published = live_journals.published(self._run, now_ns) if looked else None
        live = _merged(self._run, self._stored, looked, now_ns, published)
        if live.outcome == RUNNING:
            return live
        # As in the summary, the figures of a finished run are over all steps, not the last ones.
        if self._whole is None or self._read_ns == now_ns:
            self._whole = _whole_run(self._run)
        return replace(live, **self._whole)


def _whole_run(run: RunFolder) -> dict[str, Any]:
    store = Store(run.path)
    processes = read_processes(store)
    figures: dict[str, Any] = {"duration_ns": processes.duration_ns}
    phase = main_phase(store)
    if phase is None:
        return figures
    warm_up = read_warm_up(store, phase)
    steps, work = read_steps(store, phase, warm_up), read_work(store, phase, warm_up)
    waits = [row for row in steps.rows if row.category == DATA_LOADING and not row.beside]
    return figures | {
        "mean_ns": steps.mean_ns,
        "steps_per_s": 1e9 / steps.mean_ns if steps.mean_ns else None,
        "samples_per_s": steps.samples_per_s,
        "tokens_per_s": steps.tokens_per_s,
        "flops_per_s": work.flops_per_s * processes.ranks if work and work.flops_per_s else None,
        "data_wait": sum(row.share for row in waits),
    }


def _merged(
    run: RunFolder,
    stored: Stored,
    looked: dict[int, Looked],
    now_ns: int,
    published: PublishedNow | None = None,
) -> Live:
    outcome = RUNNING if looked else stored.outcome
    at_ns = now_ns if outcome == RUNNING else stored.last_ns
    ranks = sorted(stored.ranks.keys() | looked.keys())
    steps = {rank: _steps_of(rank, stored, looked) for rank in ranks}
    all_steps = [step for of_rank in steps.values() for step in of_rank]
    rates = _rates(steps, at_ns)
    # Readings published by the agent on this node are newer than the stored ones.
    readings, read_ns, warnings = published or (stored.readings, stored.read_ns, [])
    step = max((seen.number for seen in all_steps), default=None)
    expected = stored.steps_expected
    accounts = item_accounts.read_accounts(run.path)
    last = dict(stored.last)
    for seen in reversed(looked.values()):  # the lowest rank's value takes precedence
        last |= seen.last
    return Live(
        id=run.facts.id,
        short_id=run.short_id,
        name=run.facts.name,
        outcome=outcome,
        is_seen=bool(looked),
        at_ns=at_ns,
        duration_ns=max(0, at_ns - run.facts.started_ns),
        world_size=max(run.facts.world_size, len(ranks)),
        phase=next((seen.phase for seen in looked.values() if seen.steps), stored.phase),
        step=step,
        steps_expected=expected,
        left_ns=_left_ns(step, expected, rates.steps) if outcome == RUNNING else None,
        mean_ns=fmean(seen.duration_ns for seen in all_steps) if all_steps else None,
        steps_per_s=rates.steps,
        samples_per_s=rates.samples,
        tokens_per_s=rates.tokens,
        flops_per_s=rates.flops,
        data_wait=_waited(all_steps),
        last=last,
        ranks=_ranks(stored, looked, steps, find_usage(readings), at_ns),
        devices=find_devices(readings),
        readings_age_ns=max(0, at_ns - read_ns) if read_ns else None,
        warnings=warnings,
        lost=item_accounts.lost(accounts) if accounts else None,
        requests=requests_now(one for seen in looked.values() for one in seen.requests),
    )


def _ranks(
    stored: Stored,
    looked: dict[int, Looked],
    steps: dict[int, list[StepSeen]],
    usage: dict[int, Usage],
    at_ns: int,
) -> list[RankNow]:
    return [
        _rank(stored.ranks.get(rank), looked.get(rank), rank, seen, usage.get(rank, Usage()), at_ns)
        for rank, seen in steps.items()
    ]


def _steps_of(rank: int, stored: Stored, looked: dict[int, Looked]) -> list[StepSeen]:
    if rank in looked and looked[rank].steps:
        return looked[rank].steps
    return stored.ranks[rank].steps if rank in stored.ranks else []


def _rank(
    known: StoredRank | None,
    looked: Looked | None,
    rank: int,
    steps: list[StepSeen],
    usage: Usage,
    at_ns: int,
) -> RankNow:
    number = steps[-1].number if steps else None
    return RankNow(
        rank=rank,
        host=looked.host if looked else known.host if known else "",
        outcome=RUNNING if looked else known.outcome if known else RUNNING,
        step=looked.step if looked and looked.step is not None else number,
        section=looked.section if looked else "",
        open_ns=looked.open_ns if looked else None,
        step_ns=[step.duration_ns for step in steps[-SPARK_STEPS:]],
        data_wait=_waited(steps),
        last_step_ns=max(0, at_ns - steps[-1].end_ns) if steps else None,
        memory_bytes=usage.memory_bytes,
        cpus=usage.cpus,
    )


def _waited(steps: list[StepSeen]) -> float | None:
    duration = sum(step.duration_ns for step in steps)
    return sum(step.waited_ns for step in steps) / duration if duration else None


def _rates(steps: dict[int, list[StepSeen]], at_ns: int) -> _Rates:
    """Return the rates per second at the Unix time ``at_ns``; ``steps`` are the last steps by rank.

    A rank's rate is the amount in its recent steps divided by the time since the first of these
    steps started. Therefore the rate of a hanging rank decreases steadily. Step rates are averaged
    over ranks, because each rank executes all steps. Samples, tokens and operations are summed.
    """
    rates: list[float] = []
    sums: dict[str, float] = {}
    for seen in steps.values():
        if not seen or at_ns <= seen[0].start_ns:
            continue
        seconds = (at_ns - seen[0].start_ns) / 1e9
        rates.append(len(seen) / seconds)
        for what in ("samples", "tokens", "flops"):
            counted = [value for step in seen if (value := getattr(step, what)) is not None]
            if counted:
                sums[what] = sums.get(what, 0.0) + sum(counted) / seconds
    mean = sum(rates) / len(rates) if rates else None
    return _Rates(mean, sums.get("samples"), sums.get("tokens"), sums.get("flops"))


def _left_ns(step: int | None, expected: int | None, steps_per_s: float | None) -> int | None:
    if step is None or not expected or not steps_per_s:
        return None
    return max(0, round((expected - step - 1) / steps_per_s * 1e9))
