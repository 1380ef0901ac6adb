"""Points in time that the user's program marked by ``run.mark()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict

from otel_mlperf.tables.run_tables import MarkRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.store.table_reader import Store


class MarkedPoint(MarkRow, frozen=True, kw_only=True):
    """One call of ``run.mark()`` on one rank."""

    after_ns: int
    """Time since the start of the run."""


MOST: Final = 1000


def read_marks(store: Store, started_ns: int) -> list[MarkedPoint]:
    """Return the first ``MOST`` marks in time order; ``started_ns`` is the start of the run."""
    return [
        MarkedPoint(**asdict(mark), after_ns=mark.time_ns - started_ns)
        for mark in store.read(MarkRow, "ORDER BY time_ns, rank LIMIT $most", most=MOST)
    ]


def of_first_rank(marks: Sequence[MarkedPoint]) -> list[MarkedPoint]:
    """Return the marks of the first rank with marks; other ranks mark at about the same times."""
    first = min((mark.rank for mark in marks), default=0)
    return [mark for mark in marks if mark.rank == first]
