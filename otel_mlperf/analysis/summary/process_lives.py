"""What do the tables say of the life of each process of a run?"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_ranges import step_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.analysis.run.run_processes import Processes
    from otel_mlperf.store.table_reader import Store

_LOADS: Final = (names.SPAN_CHECKPOINT_LOAD, "load_checkpoint")
Key = tuple[int, int]
"""Rank and restart."""


class LikeSteps(NamedTuple):
    """Steps of one process in one phase that became the same."""

    phase: str
    is_lost: bool
    steps: int
    sum_ns: int
    wait_ns: int
    """For data, on the step's own thread."""
    compile_ns: int
    """By torch.compile, on that thread."""


class OutsideSection(NamedTuple):
    """A section of the main thread outside steps, as the tables have it."""

    path: str
    category: str
    name: str
    own_ns: int
    start_ns: int


@dataclass(slots=True)
class Life:
    """One process of a rank; Unix times."""

    key: Key
    begin_ns: int
    """With what was before the run's start."""
    start_ns: int
    end_ns: int
    steps: list[LikeSteps] = field(default_factory=list)
    outside: list[OutsideSection] = field(default_factory=list)
    first_step_ns: int | None = None
    unfinished_ns: int = 0
    """Of the step that was open when it died."""


def read_lives(store: Store, processes: Processes) -> dict[int, list[Life]]:
    """The processes of each rank, one after the other: none begins before the last one ended.

    A program that starts its ranks itself has the number of the first one, which lives inside its
    life: that is one.
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
        before = imports.pop(key, 0)  # of the first of them, were there two
        begin = max(process.start_ns - before, least)
        of_rank.append(Life(key, begin, start, max(end, start)))
    by_key = {life.key: life for of_rank in lives.values() for life in of_rank}
    _add_steps(store, by_key, _again_from(store, lives.values()))
    _add_outside(store, by_key)
    return lives


def _imports(store: Store) -> dict[Key, int]:
    """Time before the run's start, of processes that have told."""
    rows = store.rows(
        "SELECT rank, restart, max(value) FROM readings WHERE name = $name GROUP BY ALL",
        name=names.RUN_IMPORTS.name,
    )
    return {(rank, restart): round(seconds * 1e9) for rank, restart, seconds in rows}


def _again_from(store: Store, lives: Iterable[list[Life]]) -> dict[Key, int]:
    """From which number on a process's training steps were made again by a later one."""
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
    # It went on from a checkpoint and yet counts from zero: its numbers are not those of before.
    known = {key: number for key, number in first.items() if number or key not in loaded}
    again: dict[Key, int] = {}
    for of_rank in lives:
        for at, life in enumerate(of_rank):
            later = [known[one.key] for one in of_rank[at + 1 :] if one.key in known]
            if later:
                again[life.key] = min(later)
    return again


def _add_steps(store: Store, lives: dict[Key, Life], again: dict[Key, int]) -> None:
    alike: dict[tuple[Key, str, bool], list[int]] = {}
    for low, high in step_ranges(store):
        for rank, restart, phase, is_lost, start, *sums in _some_steps(store, again, low, high):
            if life := lives.get((rank, restart)):
                known = alike.setdefault(((rank, restart), phase, is_lost), [0] * len(sums))
                known[:] = map(add, known, sums)
                life.first_step_ns = min(start, life.first_step_ns or start)
    for (key, phase, is_lost), sums in alike.items():
        lives[key].steps.append(LikeSteps(phase, is_lost, *sums))
    unfinished = store.rows(
        "SELECT rank, restart, sum(end_ns - start_ns)::BIGINT FROM spans "
        "WHERE interrupted AND category = $step GROUP BY ALL",
        step=names.STEP,
    )
    for rank, restart, spent in unfinished:
        if life := lives.get((rank, restart)):
            life.unfinished_ns = spent


def _some_steps(
    store: Store, again: dict[Key, int], low: int, high: int
) -> list[tuple[int, int, str, bool, int, int, int, int, int]]:
    """The first begin, number and times of steps that became the same, of those in a range."""
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
        ranks=[rank for rank, _ in again],
        restarts=[restart for _, restart in again],
        numbers=list(again.values()),
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
