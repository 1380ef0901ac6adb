"""Which begin belongs to which end, where an event was written as two entries?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.kineto.reading.entries import Begin, Complete, End, Whole
from otel_mlperf.kineto.reading.times import NO_TIME, parse_times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.kineto.reading.damage import DamageLog


class Halves:
    """Pairs an end with what began last on its track, as the format has it."""

    def __init__(self, damage: DamageLog) -> None:
        self._damage = damage
        self._open: dict[tuple[Whole, Whole], list[tuple[Begin, int]]] = {}

    def pair(self, halves: Iterable[tuple[Begin | End, int]]) -> list[tuple[Complete, int]]:
        """The events that these entries end, each at the position of its begin."""
        pairs = []
        for half, position in halves:
            track = (half.pid, half.tid)
            if isinstance(half, Begin):
                self._open.setdefault(track, []).append((half, position))
            elif self._open.get(track):
                begin, begin_position = self._open[track].pop()
                pairs.append((_joined(begin, half), begin_position))
            else:
                self._damage.add("unmatched_end", position)
        return pairs

    def close(self) -> None:
        """Count what began and never ended: how long it took is not known."""
        for begins in self._open.values():
            for begin, position in begins:
                self._damage.add("unmatched_begin", position, begin.name)


def _joined(begin: Begin, end: End) -> Complete:
    start_ns, end_ns = parse_times(lambda: (begin.ts, end.ts), 2).tolist()
    known = NO_TIME not in (start_ns, end_ns)
    return Complete(
        cat=begin.cat,
        name=begin.name,
        pid=begin.pid,
        tid=begin.tid,
        ts=begin.ts,
        dur=f"{end_ns - start_ns}e-3" if known else end.ts,
        args=begin.args,
    )
