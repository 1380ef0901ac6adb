"""How long did the steps take, one after the other?

Of several ranks a step counts once, with the mean over the ranks: they step together. The warm-up
step, steps that a profiler slowed down and steps that failed are not among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.analysis.steps.step_shares import PROFILED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.store.table_reader import Store

# A step without the section has the time 0 there, so that all lists are of the same steps.
_COUNTED: Final = """WITH counted AS (SELECT * FROM steps WHERE phase = $phase AND n >= $first),
chosen AS (SELECT * FROM counted WHERE NOT error AND coalesce(kept, '') <> $profiled),
numbered AS (SELECT restart, n, count(*) AS ranks FROM chosen GROUP BY ALL)"""
_STEPS: Final = (
    f"{_COUNTED} SELECT list(number ORDER BY restart, n), list(duration ORDER BY restart, n), "
    "list(own ORDER BY restart, n), list(elements ORDER BY restart, n) "
    "FROM (SELECT restart, n, min(number) AS number, avg(duration_ns) AS duration, "
    "avg(self_ns) AS own, max(elements) AS elements FROM chosen GROUP BY ALL)"
)
_SECTIONS: Final = f"""{_COUNTED}, own AS (
    SELECT name, min(category) AS category, restart, n, sum(s.self_ns) AS own,
           min(s.start_ns - chosen.start_ns) AS since
    FROM sections s JOIN chosen USING (rank, restart, n)
    WHERE s.phase = $phase AND NOT beside GROUP BY name, restart, n),
named AS (SELECT name, min(category) AS category, avg(since) AS since FROM own GROUP BY name)
SELECT named.name, named.category, list(coalesce(own.own, 0) / ranks ORDER BY restart, n)
FROM numbered CROSS JOIN named LEFT JOIN own USING (name, restart, n)
GROUP BY ALL ORDER BY min(named.since), named.name"""


class StepSeries(NamedTuple):
    """The steps in their order; all arrays are as long."""

    numbers: NDArray[np.int64]
    """That the program gave them."""
    durations_ns: NDArray[np.float64]
    own_ns: NDArray[np.float64]
    """In no section."""
    elements: NDArray[np.float64]
    """Of the batches, of the rank that had most; not a number where that is not known."""


class SectionSeries(NamedTuple):
    """One section's own time in each of these steps: 0 where it was not."""

    name: str
    category: str
    own_ns: NDArray[np.float64]


def read_step_series(store: Store, phase: str, *, has_warm_up: bool) -> StepSeries:
    """The steps of a phase, without the first one where that is the warm-up."""
    ((numbers, durations, own, elements),) = store.rows(_STEPS, **_values(phase, has_warm_up))
    return StepSeries(
        np.array(numbers or [], dtype=np.int64),
        np.array(durations or [], dtype=np.float64),
        np.array(own or [], dtype=np.float64),
        np.array(elements or [], dtype=np.float64),
    )


def read_section_series(store: Store, phase: str, *, has_warm_up: bool) -> list[SectionSeries]:
    """The sections of the same steps, in the order in which they begin; not those beside."""
    return [
        SectionSeries(name, category, np.array(own, dtype=np.float64))
        for name, category, own in store.rows(_SECTIONS, **_values(phase, has_warm_up))
    ]


def _values(phase: str, has_warm_up: bool) -> dict[str, Any]:
    return {"phase": phase, "first": 1 if has_warm_up else 0, "profiled": PROFILED}
