"""Stack samples of the main thread in steps, by line of the user's program and called function.

*Own* lines are not called by a library, and most of their samples are outside torch calls.
"""

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

_MIN_SAMPLES: Final = 30
_MIN_OWN_SAMPLES: Final = 5
_MIN_SHARE: Final = 0.05
_TORCH: Final = "torch"
_INLINE: Final = re.compile(
    r"(?:(?:\.<locals>)?(?:\.|^)<(?:listcomp|setcomp|dictcomp|genexpr|lambda)>)+$"
)
_MOSTLY: Final = 0.5
_TEXT: Final = frozenset({"print", "str", "repr", "format", "write"})
"""Python builtins that make torch format a tensor; they do not count as calls of torch."""
# Counters of a restarted process start at zero: the totals of all restarts are summed.
_SAMPLES: Final = """SELECT rank, labels, sum(samples) FROM (
    SELECT rank, restart, labels, max(value) AS samples FROM readings
    WHERE name = $name AND rank IS NOT NULL GROUP BY ALL) GROUP BY ALL ORDER BY ALL"""


class Line(NamedTuple):
    """One line of the user's program."""

    file: str
    number: str
    function: str
    within: str
    """Library that called the line: ``loading`` (a DataLoader) or ``torch``; empty: no library."""

    def __str__(self) -> str:
        return f"{self.file}:{self.number} in {self.function}"


class Call(NamedTuple):
    """Call that a line was executing when the line was sampled."""

    name: str
    """Name of the call as written in the line; empty: the sample was in the line, outside calls."""
    package: str
    """Package of the called Python function; empty: a C function, or no call."""


class StackLines:
    """Stack samples of one rank's main thread."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.total = 0.0
        """All samples, including those without a known line."""
        self.calls: dict[Line, dict[Call, float]] = defaultdict(dict)
        """Samples by line and by the call in it."""
        self._own_weight = 1.0

    def lift_own_lines(self, uncovered: float) -> None:
        """Raise the weight of ``own_lines`` until their share is at least ``uncovered``.

        ``uncovered`` is the untracked share of a step. Own lines are sampled too rarely, because
        the sampler waits for the GIL, which torch calls release and Python code keeps for 5 ms. In
        short steps the next torch call is sampled instead.
        """
        lines = self.own_lines()
        own = self.share(lines)
        if own < uncovered and own * self.total >= _MIN_OWN_SAMPLES:
            self._own_weight = uncovered / own

    def own_lines(self) -> list[Line]:
        """Return the lines that no library called and that were mostly sampled outside torch calls.

        Samples outside any call count as outside: iteration over a tensor runs in torch, but the
        line contains no call. So do samples in a builtin that formats a tensor.
        """
        return [
            line
            for line, calls in self.calls.items()
            if not line.within
            and sum(n for call, n in calls.items() if _is_own(call)) > _MOSTLY * sum(calls.values())
        ]

    def own_parts(self) -> list[list[Line]]:
        """Return own lines grouped by function.

        If a function also has lines that are not own, such as a training loop, each own line is a
        group.
        """
        own = self.own_lines()
        loops = {(line.file, line.function) for line in self.calls if line not in own}
        parts: dict[tuple[str, ...], list[Line]] = defaultdict(list)
        for line in own:
            of = line.file, line.function
            parts[(*of, line.number) if of in loops else of].append(line)
        return [*parts.values()]

    def share(self, lines: Iterable[Line]) -> float:
        """Return the share of the sampled time in these lines and the functions they call."""
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
    return _INLINE.sub("", qualified) or "<module>"


@once_a_run
def lifted_stack_lines(numbers: RunNumbers) -> list[StackLines]:
    """Return the stack samples of each rank, with own lines weighted by ``lift_own_lines``."""
    return read_stack_lines(numbers.store, numbers.uncovered)


class Costliest(NamedTuple):
    """The function or line of the user's program that likely causes most of the untracked time."""

    share: float
    """Share of a step, 0.0 to 1.0."""
    of_named: float
    """Share of a step in all own functions and lines of this rank with at least ``_MIN_SHARE``."""
    rank: int
    line: Line
    call: Call
    """Most frequent call of that line."""

    @property
    def place(self) -> str:
        """Return the line as text, with its most frequent call."""
        return f"{self.call.name}() at {self.line}" if self.call.name else str(self.line)

    @property
    def words(self) -> str:
        """Return the end of a summary: the share and the costliest line."""
        return f"; {self.share:.0%} of the step time likely in {self.place}"


@once_a_run
def most_uncovered(numbers: RunNumbers) -> Costliest | None:
    """Return the costliest function or line of the user's program; None if all cost too little."""
    known = [
        (rank.share(lines), rank, lines)
        for rank in lifted_stack_lines(numbers)
        for lines in rank.own_parts()
    ]
    known = [one for one in known if one[0] >= _MIN_SHARE]
    if not known:
        return None
    share, rank, lines = max(known, key=lambda one: one[0])
    line, call = _most(rank, lines)
    of_named = sum(one[0] for one in known if one[1] is rank)
    return Costliest(share, of_named, rank.rank, line, call)


def costliest_outside(numbers: RunNumbers, metric: names.Metric) -> tuple[float, str]:
    """Return the share of a function that costs much time outside steps, and its costliest line.

    ``metric`` selects samples between steps or before the first step. The first rank with a
    function of over a quarter of its samples counts; without one, return 0.0 and an empty text.
    """
    for lines in read_stack_lines(numbers.store, metric=metric):
        parts = lines.own_parts()
        most = max(parts, key=lines.share, default=None)
        if most is not None and lines.share(most) > _MOSTLY / 2:
            return lines.share(most), _place(lines, most)
    return 0.0, ""


def ending_with(share: float, line: str, *, of: str) -> str:
    """Return the end of a summary: the share of ``line`` in ``of``; empty if no line is known."""
    return f"; {share:.0%} of {of} likely in {line}" if line else ""


def _place(rank: StackLines, lines: Iterable[Line]) -> str:
    line, call = _most(rank, lines)
    return f"{call.name}() at {line}" if call.name else str(line)


def _most(rank: StackLines, lines: Iterable[Line]) -> tuple[Line, Call]:
    line = max(lines, key=lambda one: rank.share([one]))
    calls = rank.calls[line]
    return line, max(calls, key=lambda one: calls[one])


def read_stack_lines(
    store: Store, uncovered: float = 0.0, metric: names.Metric = names.STACK_SAMPLES
) -> list[StackLines]:
    """Return the stack samples of each rank that has at least ``_MIN_SAMPLES`` samples.

    Own lines are weighted by ``lift_own_lines(uncovered)``.
    """
    ranks: dict[int, StackLines] = {}
    for rank, labels, samples in store.rows(_SAMPLES, name=metric.name):
        lines = ranks.setdefault(rank, StackLines(rank))
        lines.total += samples
        parsed = json.loads(labels or "{}")
        if names.CODE_FILE in parsed:
            line = Line(
                parsed[names.CODE_FILE],
                parsed.get(names.CODE_LINE, ""),
                _function(parsed.get(names.CODE_FUNCTION, "")),
                parsed.get(names.STACK_WITHIN, ""),
            )
            call = Call(parsed.get(names.STACK_CALL, ""), parsed.get(names.STACK_PACKAGE, ""))
            lines.calls[line][call] = lines.calls[line].get(call, 0.0) + samples
    known = [lines for lines in ranks.values() if lines.total >= _MIN_SAMPLES]
    for lines in known:
        lines.lift_own_lines(uncovered)
    return known
