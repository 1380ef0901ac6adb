"""Goodput of a run: the wall time by kind and rank, from the lifetimes of the processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_ranges import step_ranges
from otel_mlperf.analysis.summary import goodput_shapes as kinds
from otel_mlperf.analysis.summary.goodput_shapes import KINDS, PRODUCTIVE, Ledger, RankLedger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.analysis.run.run_processes import Processes
    from otel_mlperf.store.table_reader import Store


_LOADS: Final = (names.SPAN_CHECKPOINT_LOAD, "load_checkpoint")
Key = tuple[int, int]
"""Rank and restart."""


class StepSums(NamedTuple):
    """Sums over the steps of one process in one phase, of either all lost or all other steps."""

    phase: str
    is_lost: bool
    steps: int
    sum_ns: int
    wait_ns: int
    """Data wait on each step's own thread."""
    compile_ns: int
    """Time of torch.compile on the same threads."""


class OutsideSection(NamedTuple):
    """A section of the main thread outside steps, as stored in the tables."""

    path: str
    category: str
    name: str
    own_ns: int
    start_ns: int


@dataclass(slots=True)
class Life:
    """Lifetime of one process of a rank; times are Unix times."""

    key: Key
    begin_ns: int
    """Start of the process: earlier than the start of the run by the time of imports."""
    start_ns: int
    end_ns: int
    steps: list[StepSums] = field(default_factory=list)
    outside: list[OutsideSection] = field(default_factory=list)
    first_step_ns: int | None = None
    unfinished_ns: int = 0
    """Duration of the step that was open when the process died."""


def read_lives(store: Store, processes: Processes) -> dict[int, list[Life]]:
    """Return by rank the lifetimes of the rank's processes, in time order and without overlaps.

    A program that starts its ranks itself has the same rank number as its first rank. The process
    of that rank runs within the program's lifetime, so both lifetimes are merged.
    """
    imports = _imports(store)
    lives: dict[int, list[Life]] = {}
    for process in sorted(processes.all, key=lambda one: (one.start_ns, one.restart)):
        key = (process.rank, process.restart)
        of_rank = lives.setdefault(process.rank, [])
        least = of_rank[-1].end_ns if of_rank else 0
        if of_rank and of_rank[-1].key == key and process.start_ns < least:
            of_rank[-1].end_ns = max(processes.end_of(process), least)
            continue
        start, end = max(process.start_ns, least), max(processes.end_of(process), least)
        before = imports.pop(key, 0)  # only for the first process
        begin = max(process.start_ns - before, least)
        of_rank.append(Life(key, begin, start, max(end, start)))
    by_key = {life.key: life for of_rank in lives.values() for life in of_rank}
    _add_steps(store, by_key, _repeated_from(store, lives.values()))
    _add_outside(store, by_key)
    return lives


def _imports(store: Store) -> dict[Key, int]:
    rows = store.rows(
        "SELECT rank, restart, max(value) FROM readings WHERE name = $name GROUP BY ALL",
        name=names.RUN_IMPORTS.name,
    )
    return {(rank, restart): round(seconds * 1e9) for rank, restart, seconds in rows}


def _repeated_from(store: Store, lives: Iterable[list[Life]]) -> dict[Key, int]:
    """Return by process the lowest training step number of the later processes of its rank."""
    first = {
        (rank, restart): number
        for rank, restart, number in store.rows(
            "SELECT rank, restart, min(number) FROM steps WHERE phase = $train GROUP BY ALL",
            train=names.TRAIN,
        )
    }
    loaded = {
        (rank, restart)
        for rank, restart in store.rows(
            "SELECT DISTINCT rank, restart FROM sections WHERE list_contains($loads, name)",
            loads=list(_LOADS),
        )
    }
    # Excludes processes that loaded a checkpoint and count from zero: they restarted the numbering.
    known = {key: number for key, number in first.items() if number or key not in loaded}
    repeated: dict[Key, int] = {}
    for of_rank in lives:
        for at, life in enumerate(of_rank):
            later = [known[one.key] for one in of_rank[at + 1 :] if one.key in known]
            if later:
                repeated[life.key] = min(later)
    return repeated


def _add_steps(store: Store, lives: dict[Key, Life], repeated: dict[Key, int]) -> None:
    alike: dict[tuple[Key, str, bool], list[int]] = {}
    for low, high in step_ranges(store):
        for rank, restart, phase, is_lost, start, *sums in _some_steps(store, repeated, low, high):
            if life := lives.get((rank, restart)):
                known = alike.setdefault(((rank, restart), phase, is_lost), [0] * len(sums))
                known[:] = map(add, known, sums)
                life.first_step_ns = min(start, life.first_step_ns or start)
    for (key, phase, is_lost), sums in alike.items():
        lives[key].steps.append(StepSums(phase, is_lost, *sums))
    unfinished = store.rows(
        "SELECT rank, restart, sum(end_ns - start_ns)::BIGINT FROM spans "
        "WHERE interrupted AND category = $step GROUP BY ALL",
        step=names.STEP,
    )
    for rank, restart, spent in unfinished:
        if life := lives.get((rank, restart)):
            life.unfinished_ns = spent


def _some_steps(
    store: Store, repeated: dict[Key, int], low: int, high: int
) -> list[tuple[int, int, str, bool, int, int, int, int, int]]:
    """Return sums over the steps ``low <= n < high``, by process, phase and whether they are lost.

    Each row also has the start of its first step, before the sums.
    """
    return store.rows(
        "WITH again AS (SELECT unnest($ranks) AS rank, unnest($restarts) AS restart, "
        "unnest($numbers) AS first), "
        "waits AS (SELECT rank, restart, phase, n, "
        "sum(self_ns) FILTER (category = $data) AS waited, "
        "sum(self_ns) FILTER (category = $compile) AS compiled FROM sections "
        "WHERE n >= $low AND n < $high AND NOT beside AND category IN ($data, $compile) "
        "GROUP BY ALL) "
        "SELECT rank, restart, phase, error OR (phase = $train AND number >= "
        "coalesce(first, number + 1)) AS lost, min(start_ns), count(*), "
        "sum(duration_ns)::BIGINT, coalesce(sum(waited), 0)::BIGINT, "
        "coalesce(sum(compiled), 0)::BIGINT FROM steps "
        "LEFT JOIN again USING (rank, restart) LEFT JOIN waits USING (rank, restart, phase, n) "
        "WHERE n >= $low AND n < $high GROUP BY ALL",
        ranks=[rank for rank, _ in repeated],
        restarts=[restart for _, restart in repeated],
        numbers=list(repeated.values()),
        data=names.DATA_LOADING,
        compile=names.COMPILE,
        train=names.TRAIN,
        low=low,
        high=high,
    )


def _add_outside(store: Store, lives: dict[Key, Life]) -> None:
    rows = store.rows(
        "SELECT rank, restart, path, category, name, sum(self_ns)::BIGINT, min(start_ns) "
        "FROM sections WHERE n IS NULL AND NOT beside AND category <> $run AND path <> '' "
        "GROUP BY rank, restart, path, category, name, start_ns",
        run=names.RUN,
    )
    for rank, restart, *section in rows:
        if life := lives.get((rank, restart)):
            life.outside.append(OutsideSection(*section))


_OF_PHASE: Final = {
    names.TRAIN: kinds.TRAIN,
    names.PREDICT: kinds.PREDICT,
    names.VALIDATE: kinds.VALIDATION,
    "test": kinds.VALIDATION,
}
_CONTAINERS: Final = (names.EPOCH, names.PHASE)


def read_ledger(store: Store, processes: Processes) -> Ledger | None:
    """Return the ledger of a run, or None if no process of the run is known yet."""
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
            # A data wait of validation counts as validation: it does not slow down training.
            spent[kinds.DATA_WAIT if kind == kinds.TRAIN else kind] += wait
    before = 0
    categories = {section.path: section for section in life.outside}
    for section in life.outside:
        kind = _kind_of(section, categories, life.first_step_ns)
        spent[kind] += section.own_ns
        if life.first_step_ns is not None and section.start_ns < life.first_step_ns:
            before += 0 if section.category in _CONTAINERS else section.own_ns
    rest = life.end_ns - life.begin_ns - spent.total()
    for kind, limit_ns in (
        (kinds.SET_UP, (life.first_step_ns or life.start_ns) - life.start_ns - before),
        (kinds.LOST_WORK, life.unfinished_ns),
    ):
        part = max(0, min(rest, limit_ns))
        spent[kind] += part
        rest -= part
    spent[kinds.OTHER] += rest
    return _without_excess(spent)


def _without_excess(spent: Counter[str]) -> Counter[str]:
    """Reduce the least certain kinds until the sum no longer exceeds the elapsed time."""
    excess = 0
    for kind in reversed(KINDS):
        reduced = spent[kind] - excess
        spent[kind], excess = max(0, reduced), max(0, -reduced)
    return spent


def _kind_of(section: OutsideSection, by_path: dict[str, OutsideSection], first: int | None) -> str:
    """Return the kind of a section's time: its own, or that of the innermost enclosing section.

    If none has a kind, the time is set-up before the first step (``first``), otherwise *other*.
    """
    path = section.path
    while path:
        around = by_path.get(path)
        kind = _own_kind(around) if around else None
        if kind:
            return kind
        path = path.rpartition("/")[0].rstrip("/")
    is_before = first is not None and section.start_ns < first
    return kinds.SET_UP if is_before and section.category not in _CONTAINERS else kinds.OTHER


def _own_kind(section: OutsideSection) -> str | None:
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
