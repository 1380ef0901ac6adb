"""Points that the program marked by ``run.mark()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.store.table_reader import Store


class MarkedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One call of ``run.mark()`` on one rank."""

    rank: int
    restart: int
    phase: str
    name: str
    """Name given by the program; ``mark`` by default."""
    number: int
    """Number of the step, within its phase, that contains or follows the mark."""
    time_ns: int
    """Unix time."""
    after_ns: int
    """Time since the start of the run."""


MOST: Final = 1000
_MARKS: Final = """SELECT rank, restart, phase, name, number, time_ns, time_ns - $started FROM marks
ORDER BY time_ns, rank LIMIT $most"""


def read_marks(store: Store, started_ns: int) -> list[MarkedPoint]:
    """Return the first marks, in time order."""
    rows = store.rows(_MARKS, started=started_ns, most=MOST)
    return [
        MarkedPoint(**dict(zip(MarkedPoint.__struct_fields__, row, strict=True))) for row in rows
    ]


def of_first_rank(marks: Sequence[MarkedPoint]) -> list[MarkedPoint]:
    """Return the marks of the first rank that set any: other ranks set them at about that time."""
    first = min((mark.rank for mark in marks), default=0)
    return [mark for mark in marks if mark.rank == first]
