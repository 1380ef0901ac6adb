"""What did a run's wall time go into, to the nanosecond: how much of it was worth it?

Each rank's time is cut at the begins and ends of its processes; a process's life into its steps,
the sections of its main thread outside steps, and the rest. What is left when all that is known is
taken away is ``other``; nothing is guessed, and nothing counts twice.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.summary import goodput_shapes as kinds
from otel_mlperf.analysis.summary.goodput_shapes import KINDS, PRODUCTIVE, Ledger, RankLedger
from otel_mlperf.analysis.summary.process_lives import Life, OutsideSection, read_lives

if TYPE_CHECKING:
    from otel_mlperf.analysis.run.run_processes import Processes
    from otel_mlperf.store.table_reader import Store

_OF_PHASE: Final = {
    names.TRAIN: kinds.TRAIN,
    names.PREDICT: kinds.PREDICT,
    names.VALIDATE: kinds.VALIDATION,
    "test": kinds.VALIDATION,
}
_CONTAINERS: Final = (names.EPOCH, names.PHASE)


def read_ledger(store: Store, processes: Processes) -> Ledger | None:
    """The ledger of a run; None before a process of it is known."""
    lives = read_lives(store, processes)
    if not lives:
        return None
    begin = min(life.begin_ns for of_rank in lives.values() for life in of_rank)
    end = max(life.end_ns for of_rank in lives.values() for life in of_rank)
    ranks = [
        RankLedger(rank=rank, spent_ns=_spent(of_rank, begin, end))
        for rank, of_rank in sorted(lives.items())
    ]
    total = {kind: sum(rank.spent_ns[kind] for rank in ranks) for kind in KINDS}
    wall = end - begin
    productive = sum(total[kind] for kind in PRODUCTIVE)
    return Ledger(
        wall_ns=wall,
        spent_ns=total,
        goodput=productive / (wall * len(ranks)) if wall else 0.0,
        lost_steps=sum(
            steps.steps
            for of_rank in lives.values()
            for life in of_rank
            for steps in life.steps
            if steps.is_lost
        ),
        ranks=ranks,
    )


def _spent(lives: list[Life], begin_ns: int, end_ns: int) -> dict[str, int]:
    """What one rank spent the time from ``begin_ns`` to ``end_ns`` on, by kind."""
    spent: Counter[str] = Counter()
    spent[kinds.IDLE] = lives[0].begin_ns - begin_ns + end_ns - lives[-1].end_ns
    for before, after in pairwise(lives):
        spent[kinds.RESTART] += after.begin_ns - before.end_ns
    for life in lives:
        spent += _of_life(life)
    return {kind: spent[kind] for kind in KINDS}


def _of_life(life: Life) -> Counter[str]:
    spent: Counter[str] = Counter()
    spent[kinds.IMPORTS] = life.start_ns - life.begin_ns
    for steps in life.steps:
        kind = _OF_PHASE.get(steps.phase, kinds.OTHER)
        if steps.is_lost:
            spent[kinds.LOST_WORK] += steps.sum_ns
        else:
            compiled = min(steps.compile_ns, steps.sum_ns)
            wait = min(steps.wait_ns, steps.sum_ns - compiled)
            spent[kind] += steps.sum_ns - compiled - wait
            spent[kinds.COMPILE] += compiled
            # What validation waits for its data is validation: nobody trains faster without it.
            spent[kinds.DATA_WAIT if kind == kinds.TRAIN else kind] += wait
    before = 0
    categories = {section.path: section for section in life.outside}
    for section in life.outside:
        kind = _kind_of(section, categories, life.first_step_ns)
        spent[kind] += section.own_ns
        if life.first_step_ns is not None and section.start_ns < life.first_step_ns:
            before += 0 if section.category in _CONTAINERS else section.own_ns
    rest = life.end_ns - life.begin_ns - spent.total()
    for kind, most in (
        (kinds.SET_UP, (life.first_step_ns or life.start_ns) - life.start_ns - before),
        (kinds.LOST_WORK, life.unfinished_ns),
    ):
        part = max(0, min(rest, most))
        spent[kind] += part
        rest -= part
    spent[kinds.OTHER] += rest
    return _without_debt(spent)


def _without_debt(spent: Counter[str]) -> Counter[str]:
    """Where more is told than there was time for (clocks, overlaps), the vaguest kinds give way."""
    debt = 0
    for kind in reversed(KINDS):
        left = spent[kind] - debt
        spent[kind], debt = max(0, left), max(0, -left)
    return spent


def _kind_of(section: OutsideSection, by_path: dict[str, OutsideSection], first: int | None) -> str:
    """By the innermost section around it, or itself, that says what it is for."""
    path = section.path
    while path:
        around = by_path.get(path)
        kind = _said(around) if around else None
        if kind:
            return kind
        path = path.rpartition("/")[0].rstrip("/")
    is_before = first is not None and section.start_ns < first
    return kinds.SET_UP if is_before and section.category not in _CONTAINERS else kinds.OTHER


def _said(section: OutsideSection) -> str | None:
    if section.category == names.CHECKPOINT:
        return kinds.CHECKPOINT
    if section.category == names.COMPILE:
        return kinds.COMPILE
    if section.category == names.DATA_LOADING:
        return kinds.DATA_WAIT
    if section.category == names.REQUEST:
        return kinds.PREDICT
    if section.category == names.PHASE and section.name != names.TRAIN:
        return _OF_PHASE.get(section.name)
    return None
