"""Time series of step durations, downsampled into as many buckets as a page can show.

Steps are ordered by start, and consecutive steps share a bucket. A bucket's minimum, mean and
maximum are exact, over all of its steps on all ranks. In a run of few steps each bucket contains
one step. The buckets include the same steps as the summary's figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.analysis.steps.step_shares import CHOSEN, UNTRACKED, shown

if TYPE_CHECKING:
    from otel_mlperf.analysis.steps.step_shapes import StepFigures
    from otel_mlperf.store.table_reader import Store

MOST: Final = 500
"""Default for the maximum number of buckets: a screen has no more columns."""
OTHERS: Final = "others"
_MAX_SECTIONS: Final = 8
# Buckets are assigned per step, not per step and rank: then the sections of 6 million steps of
# ranks are joined with a table of only 100,000 rows.
_PLACED: Final = f"""{CHOSEN}, numbered AS (
    SELECT restart, n, row_number() OVER (ORDER BY min(start_ns), restart, n) - 1 AS place,
           place // $size AS bucket
    FROM chosen GROUP BY restart, n
), placed AS (
    SELECT bucket, place, number, start_ns, duration_ns, self_ns
    FROM chosen JOIN numbered USING (restart, n)
), failed AS (
    SELECT rank, restart, n FROM counted
    WHERE error AND NOT (SELECT bool_and(error) FROM counted)
)"""
_BUCKETS: Final = f"""{_PLACED} SELECT min(start_ns), min(number), max(number),
    max(place) - min(place) + 1, min(duration_ns), avg(duration_ns), max(duration_ns), avg(self_ns)
FROM placed GROUP BY bucket ORDER BY bucket"""
_SECTIONS: Final = f"""{_PLACED}, own AS (
    SELECT bucket, name, min(category) AS category, sum(s.self_ns) AS own
    FROM sections s JOIN numbered USING (restart, n) ANTI JOIN failed USING (rank, restart, n)
    WHERE s.phase = $phase AND NOT beside GROUP BY bucket, name
), rows AS (SELECT bucket, count(*) AS steps FROM placed GROUP BY bucket),
named AS (SELECT name, min(category) AS category, sum(own) AS own FROM own GROUP BY name)
SELECT named.name, named.category,
       list(coalesce(part.own, 0)::DOUBLE / rows.steps ORDER BY rows.bucket)
FROM named CROSS JOIN rows
LEFT JOIN own part ON part.bucket = rows.bucket AND part.name = named.name
GROUP BY named.name, named.category, named.own ORDER BY named.own DESC, named.name"""


class SectionBuckets(msgspec.Struct, frozen=True, kw_only=True):
    """Self time of one section per step, as a mean for each bucket."""

    name: str
    """Displayed name; includes ``untracked`` and ``others``."""
    category: str
    mean_ns: list[float]


class StepBuckets(msgspec.Struct, frozen=True, kw_only=True):
    """Steps over time; all lists have one entry per bucket."""

    size: int
    """Steps per bucket; the last bucket may have fewer."""
    start_ns: list[int]
    """Earliest start of the bucket's steps on any rank: Unix time."""
    first: list[int]
    """Smallest step number of the bucket."""
    last: list[int]
    count: list[int]
    """Steps of the bucket; a step of several ranks counts once."""
    min_ns: list[int]
    mean_ns: list[float]
    max_ns: list[int]
    sections: list[SectionBuckets]
    """Sections that sum to ``mean_ns``, most time first."""


def read_step_buckets(
    store: Store, steps: StepFigures, *, has_warm_up: bool, most: int = MOST
) -> StepBuckets | None:
    """Return at most ``most`` buckets of steps; None if no step was evaluated.

    The first step is excluded if ``has_warm_up``.
    """
    values: dict[str, Any] = {"phase": steps.phase, "first": 1 if has_warm_up else 0}
    sql = f"{CHOSEN} SELECT count(DISTINCT (restart, n)) FROM chosen"
    ((count,),) = store.rows(sql, **values)
    if not count:
        return None
    size = -(-count // most)
    buckets = store.rows(_BUCKETS, size=size, **values)
    *known, own = [list(column) for column in zip(*buckets, strict=True)]
    found = store.rows(_SECTIONS, size=size, **values)
    named = ("start_ns", "first", "last", "count", "min_ns", "mean_ns", "max_ns")
    return StepBuckets(
        size=size, sections=_largest(found, own), **dict(zip(named, known, strict=True))
    )


def _largest(found: list[tuple[Any, ...]], own: list[float]) -> list[SectionBuckets]:
    kept = [
        SectionBuckets(name=shown(name), category=category, mean_ns=means)
        for name, category, means in found[:_MAX_SECTIONS]
    ]
    if rest := [means for *_, means in found[_MAX_SECTIONS:]]:
        added = [sum(column) for column in zip(*rest, strict=True)]
        kept.append(SectionBuckets(name=OTHERS, category="", mean_ns=added))
    return [*kept, SectionBuckets(name=UNTRACKED, category="", mean_ns=own)]
