"""Self time of each section in a phase's steps: sums and the 95th percentile.

A run can have more section rows than fit in memory. Therefore ranges of whole steps are read one
after the other, and only the sums and the longest times of each range are retained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.analysis.steps.step_ranges import step_ranges
from otel_mlperf.store.table_reader import as_numpy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.store.table_reader import Store

_P95: Final = 0.95
_BUFFERED: Final = 10_000
# A step that an error cut short is not representative: it counts only if all steps failed.
_FAILED: Final = "SELECT bool_and(error) FROM steps WHERE phase = $phase AND n >= $first"
_PIECE: Final = """WITH chosen AS (
    SELECT rank, restart, n, start_ns FROM steps
    WHERE phase = $phase AND n >= $low AND n < $high AND (NOT error OR $failed)
), own AS (
    SELECT name, min(category) AS category, aggregate, beside, rank, restart, n,
           if(s.path = '', '', s.parent) AS wait,
           sum(s.self_ns) AS own, min(s.start_ns - chosen.start_ns) AS since
    FROM sections s JOIN chosen USING (rank, restart, n)
    WHERE s.phase = $phase AND s.n >= $low AND s.n < $high GROUP BY ALL
)
SELECT rank, name, aggregate, beside, wait, min(category) AS category, count(*) AS steps,
       sum(own)::BIGINT AS own, sum(since)::DOUBLE AS since, list(own::BIGINT) AS each
FROM own GROUP BY rank, name, aggregate, beside, wait"""


class SectionTime(NamedTuple):
    """Self time of one section in all steps of all ranks."""

    name: str
    category: str
    aggregate: bool
    beside: bool
    sum_ns: int
    p95_ns: int
    """95th percentile over all steps; a step without the section counts as 0."""
    wait: str
    """Section in which the loop waited for data while this section ran; empty: none."""


class OwnTimes(NamedTuple):
    """Self times of all sections of the steps."""

    sections: list[SectionTime]
    """Sorted by start within the step; concurrent sections last."""
    of_ranks: dict[int, dict[str, int]]
    """Self times by rank and section name, without concurrent sections."""


@dataclass(slots=True)
class _Sums:
    category: str
    steps: int = 0
    own_ns: int = 0
    since_ns: float = 0.0
    """Sum of the section's start times, each relative to its step."""

    @property
    def mean_since_ns(self) -> float:
        return self.since_ns / self.steps

    def add(self, more: _Sums) -> None:
        self.category = min(self.category, more.category)
        self.steps += more.steps
        self.own_ns += more.own_ns
        self.since_ns += more.since_ns


class _Longest:
    """The ``kept`` longest times of one section, over all ranks."""

    def __init__(self, kept: int) -> None:
        self._kept, self._count = kept, 0
        self._buffer: list[NDArray[np.int64]] = []

    def add(self, each_ns: NDArray[np.int64]) -> None:
        self._buffer.append(each_ns)
        self._count += len(each_ns)
        # Rarely true: each of thousands of ranks adds far fewer values than are retained.
        if self._count > 2 * self._kept + _BUFFERED:
            self._cut()

    def least_ns(self) -> int:
        self._cut()
        return int(self._buffer[0].min())

    def _cut(self) -> None:
        all_ns = np.concatenate(self._buffer)
        if len(all_ns) > self._kept:
            all_ns = np.partition(all_ns, len(all_ns) - self._kept)[-self._kept :].copy()
        self._buffer, self._count = [all_ns], len(all_ns)


class _Place(NamedTuple):
    name: str
    aggregate: bool
    beside: bool
    wait: str


def read_own_times(store: Store, phase: str, first: int, chosen: int) -> OwnTimes:
    """Return the self times of sections in a phase's steps from ``n = first`` upward.

    ``chosen`` is the number of these steps over all ranks.
    """
    sums: dict[tuple[int, _Place], _Sums] = {}
    longest: dict[_Place, _Longest] = {}
    kept = chosen - math.ceil(_P95 * chosen) + 1
    for rank, place, more, each_ns in _pieces(store, phase, first):
        sums.setdefault((rank, place), _Sums(more.category)).add(more)
        longest.setdefault(place, _Longest(kept)).add(each_ns)
    least = {place: of.least_ns() for place, of in longest.items()}
    return OwnTimes(_of_all(sums, least, kept), _of_ranks(sums))


def _pieces(
    store: Store, phase: str, first: int
) -> Iterator[tuple[int, _Place, _Sums, NDArray[np.int64]]]:
    """Yield rank, section, sums and the time in each step, for one range of steps at a time."""
    values: dict[str, Any] = {"phase": phase, "first": first}
    ((failed,),) = store.rows(_FAILED, **values)
    for low, high in step_ranges(store, first):
        table = store.arrow(_PIECE, phase=phase, failed=failed, low=low, high=high)
        for i, row in enumerate(table.drop_columns(["each"]).to_pylist()):
            place = _Place(row["name"], row["aggregate"], row["beside"], row["wait"])
            more = _Sums(row["category"], row["steps"], row["own"], row["since"])
            # Remains an Arrow array: a Python object per step would cost a hundred bytes.
            yield row["rank"], place, more, as_numpy(table.column("each")[i].values)


def _of_all(
    sums: dict[tuple[int, _Place], _Sums], least_ns: dict[_Place, int], kept: int
) -> list[SectionTime]:
    total: dict[_Place, _Sums] = {}
    for (_, place), more in sums.items():
        total.setdefault(place, _Sums(more.category)).add(more)
    ordered = sorted(
        total.items(),
        key=lambda item: (item[0].beside, item[1].mean_since_ns, item[0].aggregate, item[0].name),
    )
    return [
        SectionTime(
            place.name,
            of.category,
            place.aggregate,
            place.beside,
            of.own_ns,
            # If fewer steps have the section than are retained, the quantile is zero.
            least_ns[place] if of.steps >= kept else 0,
            place.wait,
        )
        for place, of in ordered
    ]


def _of_ranks(sums: dict[tuple[int, _Place], _Sums]) -> dict[int, dict[str, int]]:
    total: dict[tuple[int, str], _Sums] = {}
    for (rank, place), more in sums.items():
        if not place.beside:
            total.setdefault((rank, place.name), _Sums(more.category)).add(more)
    own: dict[int, dict[str, int]] = {}
    for (rank, name), of in sorted(
        total.items(), key=lambda item: (item[1].mean_since_ns, item[0][1])
    ):
        own.setdefault(rank, {})[name] = of.own_ns
    return own
