"""Series of step durations and of section times, in step order.

A step that several ranks ran counts once, with the mean over the ranks, because ranks step
together. The warm-up step, failed steps and steps that a profiler slowed down are excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.analysis.steps.step_ranges import step_ranges
from otel_mlperf.analysis.steps.step_shares import PROFILED
from otel_mlperf.store.table_reader import as_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.store.table_reader import Store

_COUNTED: Final = """WITH counted AS (SELECT * FROM steps WHERE phase = $phase AND n >= $first),
chosen AS (SELECT * FROM counted WHERE NOT error AND coalesce(kept, '') <> $profiled),
numbered AS (SELECT restart, n, count(*) AS ranks FROM chosen GROUP BY ALL)"""
_STEPS: Final = (
    f"{_COUNTED} SELECT list(number ORDER BY restart, n), list(duration ORDER BY restart, n), "
    "list(own ORDER BY restart, n), list(elements ORDER BY restart, n) "
    "FROM (SELECT restart, n, min(number) AS number, avg(duration_ns) AS duration, "
    "avg(self_ns) AS own, max(elements) AS elements FROM chosen GROUP BY ALL)"
)
_PLACE: Final = "(restart::BIGINT << 40) + n"
_NUMBERED: Final = f"{_COUNTED} SELECT {_PLACE} AS place, ranks FROM numbered ORDER BY place"
_SECTIONS: Final = f"""WITH chosen AS (
    SELECT rank, restart, n, start_ns FROM steps WHERE phase = $phase
    AND n >= $low AND n < $high AND NOT error AND coalesce(kept, '') <> $profiled
), own AS (
    SELECT name, min(category) AS category, restart, n, sum(s.self_ns)::BIGINT AS own,
           min(s.start_ns - chosen.start_ns) AS since
    FROM sections s JOIN chosen USING (rank, restart, n)
    WHERE s.phase = $phase AND s.n >= $low AND s.n < $high AND NOT beside
    GROUP BY name, restart, n
)
SELECT name, min(category) AS category, count(*) AS steps, sum(since)::DOUBLE AS since,
       list({_PLACE}) AS place, list(own) AS own FROM own GROUP BY name"""


class StepSeries(NamedTuple):
    """Steps of a phase in step order; all arrays have one entry per step."""

    numbers: NDArray[np.int64]
    """Step numbers that the user's program reported."""
    durations_ns: NDArray[np.float64]
    own_ns: NDArray[np.float64]
    """Untracked time of each step."""
    elements: NDArray[np.float64]
    """Elements of the batches of each step, as the maximum over the ranks; NaN if unknown."""


class SectionSeries(NamedTuple):
    """Self time of one section in each step of a series; 0 if the section is not in a step."""

    name: str
    category: str
    own_ns: NDArray[np.float64]


@dataclass(slots=True)
class _Section:
    category: str
    own_ns: NDArray[np.float64]
    """Sum over all ranks for each step; 0 in a step without the section."""
    steps: int = 0
    since_ns: float = 0.0


def read_step_series(store: Store, phase: str, *, has_warm_up: bool) -> StepSeries:
    """Return the steps of a phase, without the first step if ``has_warm_up``."""
    ((numbers, durations, own, elements),) = store.rows(_STEPS, **_values(phase, has_warm_up))
    return StepSeries(
        np.array(numbers or [], dtype=np.int64),
        np.array(durations or [], dtype=np.float64),
        np.array(own or [], dtype=np.float64),
        np.array(elements or [], dtype=np.float64),
    )


def read_section_series(store: Store, phase: str, *, has_warm_up: bool) -> list[SectionSeries]:
    """Return the sections of the same steps as ``read_step_series``, sorted by start in the step.

    Sections concurrent to the steps are excluded.
    """
    values = _values(phase, has_warm_up)
    steps = store.arrow(_NUMBERED, **values)
    places, ranks = as_numpy(steps["place"]), as_numpy(steps["ranks"])
    found: dict[str, _Section] = {}
    for low, high in step_ranges(store, values.pop("first")):
        table = store.arrow(_SECTIONS, **values, low=low, high=high)
        for i, row in enumerate(table.drop_columns(["place", "own"]).to_pylist()):
            section = found.setdefault(row["name"], _Section(row["category"], np.zeros(len(ranks))))
            section.category = min(section.category, row["category"])
            section.steps += row["steps"]
            section.since_ns += row["since"]
            at = np.searchsorted(places, as_numpy(table["place"][i].values))
            section.own_ns[at] = as_numpy(table["own"][i].values)
    ordered = sorted(found.items(), key=lambda item: (item[1].since_ns / item[1].steps, item[0]))
    return [
        SectionSeries(name, section.category, section.own_ns / ranks) for name, section in ordered
    ]


def _values(phase: str, has_warm_up: bool) -> dict[str, Any]:
    return {"phase": phase, "first": 1 if has_warm_up else 0, "profiled": PROFILED}
