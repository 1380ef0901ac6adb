"""Record numbers: the numbers that the profiler assigned to the records of a file.

torch numbers the records that it passes to Kineto (``Ev Idx``) from 0 upward: operators and
annotations by time, then changes of the allocator, then Python frames. A complete file contains
every number, so that missing records can be counted. The numbers are not stored as a column,
because a summary of each block and category suffices to derive how many records are missing, and
roughly when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from otel_mlperf.kineto.trace_events import NumberedRecords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class RecordNumbers:
    """Summary of the record numbers of each block of a trace."""

    def __init__(self) -> None:
        self._parts: list[NumberedRecords] = []

    def add(
        self,
        number: NDArray[np.signedinteger[Any]],
        start_ns: NDArray[np.int64],
        category: NDArray[np.uint8],
        names: Sequence[str],
    ) -> None:
        """Add a block's records that have a number; ``category`` is an index into ``names``."""
        rows = np.flatnonzero(number >= 0)
        for code in np.unique(category[rows]).tolist():
            mine = rows[category[rows] == code]
            first, last = mine[number[mine].argmin()], mine[number[mine].argmax()]
            self._parts.append(
                NumberedRecords(
                    names[code],
                    len(np.unique(number[mine])),
                    int(number[first]),
                    int(number[last]),
                    int(start_ns[first]),
                    int(start_ns[last]),
                )
            )

    def all(self, base_ns: int) -> list[NumberedRecords]:
        """Return the summary of each block and category, with ``base_ns`` added to the times."""
        return [
            part._replace(start_ns=part.start_ns + base_ns, end_ns=part.end_ns + base_ns)
            for part in self._parts
        ]
