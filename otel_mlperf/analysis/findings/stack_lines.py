"""Stack samples of the main thread in steps, aggregated by program line and called function."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.store.table_reader import Store

_FEWEST: Final = 30
"""Samples of a rank from which on a share of them is one."""
_FEWEST_OWN: Final = 5
"""Samples in own lines from which on the others of the time in no section are likely there, too."""
_LEAST_LINE: Final = 0.05
"""Share of the time from which on a line is worth a word."""
_TORCH: Final = "torch"
_INLINE: Final = re.compile(
    r"(?:(?:\.<locals>)?(?:\.|^)<(?:listcomp|setcomp|dictcomp|genexpr|lambda)>)+$"
)
_MOSTLY: Final = 0.5
_TEXT: Final = frozenset({"print", "str", "repr", "format", "write"})
"""Calls of Python's own that have torch write a tensor out."""
# A process that begins anew counts from zero again: the lives add up.
_SAMPLES: Final = """SELECT rank, labels, sum(samples) FROM (
    SELECT rank, restart, labels, max(value) AS samples FROM readings
    WHERE name = $name AND rank IS NOT NULL GROUP BY ALL) GROUP BY ALL ORDER BY ALL"""


class Line(NamedTuple):
    """One line of the program."""

    file: str
    number: str
    function: str
    within: str
    """What has called it: ``loading`` (a DataLoader), ``torch``; empty: the program."""

    def __str__(self) -> str:
        return f"{self.file}:{self.number} in {self.function}"


class Call(NamedTuple):
    """What a line calls."""

    name: str
    """As the line names it; empty: nothing, it works itself."""
    package: str
    """The package of the Python function that it calls; empty: a C function, or nothing."""


class StackLines:
    """The samples of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.total = 0.0
        """All of them, those of no known line too."""
        self.calls: dict[Line, dict[Call, float]] = defaultdict(dict)
        """Samples by line and what it called."""
        self._own_weight = 1.0

    def lift_own_lines(self, uncovered: float) -> None:
        """Own lines count for the share of a step that is in no section, if they have less.

        A look has to wait for the GIL, which calls of torch give up and Python's own work keeps for
        5 ms: in short steps the next call of torch is seen instead.
        """
        lines = self.own_lines()
        own = self.share(lines)
        if own < uncovered and own * self.total >= _FEWEST_OWN:
            self._own_weight = uncovered / own

    def own_lines(self) -> list[Line]:
        """Lines that no library has called, and that were mostly not in a call of torch's.

        To go through a tensor is in torch, too, but no call that the line names; to print one, what
        is called is not torch's.
        """
        return [
            line
            for line, calls in self.calls.items()
            if not line.within
            and sum(n for call, n in calls.items() if _is_own(call)) > _MOSTLY * sum(calls.values())
        ]

    def own_parts(self) -> list[list[Line]]:
        """Own lines by function, those of the loop itself one by one: it calls the model, too."""
        own = self.own_lines()
        loops = {(line.file, line.function) for line in self.calls if line not in own}
        parts: dict[tuple[str, ...], list[Line]] = defaultdict(list)
        for line in own:
            of = line.file, line.function
            parts[(*of, line.number) if of in loops else of].append(line)
        return [*parts.values()]

    def share(self, lines: Iterable[Line]) -> float:
        """Of the time of steps that the main thread was at these lines, or in what they call."""
        own = set(self.own_lines())
        return (
            sum(
                sum(self.calls[line].values()) * (self._own_weight if line in own else 1.0)
                for line in lines
            )
            / self.total
        )


def _is_own(call: Call) -> bool:
    return call.package != _TORCH or not call.name or call.name in _TEXT


def _function(qualified: str) -> str:
    """The function that a comprehension is written in: it is one line with what is around it."""
    return _INLINE.sub("", qualified) or "<module>"


@once_a_run
def lifted_stack_lines(numbers: RunNumbers) -> list[StackLines]:
    """Those of each rank, where own lines count for what is in no section."""
    return read_stack_lines(numbers.store, numbers.uncovered)


class Costliest(NamedTuple):
    """What of the program's own most of the time in no section likely goes into."""

    share: float
    """Of a step, 0.0 to 1.0."""
    of_named: float
    """Share of a step of all functions and lines of the program that are worth a word."""
    rank: int
    line: Line
    call: Call
    """What that line mostly calls."""

    @property
    def place(self) -> str:
        """The line, with what it mostly calls."""
        return f"{self.call.name}() at {self.line}" if self.call.name else str(self.line)

    @property
    def words(self) -> str:
        """The end of a summary: the share and the line that has most of it."""
        return f"; {self.share:.0%} of the time likely by {self.place}"


@once_a_run
def most_uncovered(numbers: RunNumbers) -> Costliest | None:
    """A function that calls no part of the training, else a line of it; None: too little."""
    known = [
        (rank.share(lines), rank, lines)
        for rank in lifted_stack_lines(numbers)
        for lines in rank.own_parts()
    ]
    known = [one for one in known if one[0] >= _LEAST_LINE]
    if not known:
        return None
    share, rank, lines = max(known, key=lambda one: one[0])
    line, call = _most(rank, lines)
    of_named = sum(one[0] for one in known if one[1] is rank)
    return Costliest(share, of_named, rank.rank, line, call)


def costliest_outside(numbers: RunNumbers, metric: names.Metric) -> tuple[float, str]:
    """The share and the line at which most of the time between or before steps likely goes.

    Without one that has over a quarter: 0.0 and nothing.
    """
    for lines in read_stack_lines(numbers.store, metric=metric):
        parts = lines.own_parts()
        most = max(parts, key=lines.share, default=None)
        if most is not None and lines.share(most) > _MOSTLY / 2:
            return lines.share(most), _place(lines, most)
    return 0.0, ""


def ending_with(share: float, line: str) -> str:
    """The end of a sentence about time that ``costliest_outside`` found a line for; else empty."""
    return f"; {share:.0%} of that likely by {line}" if line else ""


def _place(rank: StackLines, lines: Iterable[Line]) -> str:
    """The costliest of some lines, with what it mostly calls."""
    line, call = _most(rank, lines)
    return f"{call.name}() at {line}" if call.name else str(line)


def _most(rank: StackLines, lines: Iterable[Line]) -> tuple[Line, Call]:
    line = max(lines, key=lambda one: rank.share([one]))
    calls = rank.calls[line]
    return line, max(calls, key=lambda one: calls[one])


def read_stack_lines(
    store: Store, uncovered: float = 0.0, metric: names.Metric = names.STACK_SAMPLES
) -> list[StackLines]:
    """Those of each rank of which there are enough; so much of a step is in no section."""
    ranks: dict[int, StackLines] = {}
    for rank, labels, samples in store.rows(_SAMPLES, name=metric.name):
        lines = ranks.setdefault(rank, StackLines(rank))
        lines.total += samples
        told = json.loads(labels or "{}")
        if names.CODE_FILE in told:
            line = Line(
                told[names.CODE_FILE],
                told.get(names.CODE_LINE, ""),
                _function(told.get(names.CODE_FUNCTION, "")),
                told.get(names.STACK_WITHIN, ""),
            )
            call = Call(told.get(names.STACK_CALL, ""), told.get(names.STACK_PACKAGE, ""))
            lines.calls[line][call] = lines.calls[line].get(call, 0.0) + samples
    known = [lines for lines in ranks.values() if lines.total >= _FEWEST]
    for lines in known:
        lines.lift_own_lines(uncovered)
    return known
