"""Shares of aggregated sections in single steps.

A step stores its share of each cell in its payload when it ends. The shares of a cancelled step
move to the time outside steps. A step without aggregated sections has no cost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.instruments.open_aggregate import LONGEST_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.instruments.open_aggregate import AddUpCell
    from otel_mlperf.recorder.sections.parents import OpenStep

Memo = dict[tuple[Any, int], "AddUpCell"]
"""A thread's cache of cells, by name and id of the enclosing section."""


class AddedUpInStep:
    """Shares of aggregated sections in one step."""

    def __init__(
        self,
        recording: Recording,
        step: OpenStep,
        outside: Callable[[AddUpCell, OpenStep], AddUpCell],
    ) -> None:
        """Initialise without shares; ``outside`` maps a cell of the step to the cell outside."""
        self._words, self._step, self._outside = recording.journal.words, step, outside
        # By the cell's first word, because a later thread reuses the cell of an ended thread.
        self._before: dict[int, tuple[AddUpCell, tuple[int, int, int, int]]] = {}
        self._memos: dict[int, Memo] = {}

    def watch(self, cell: AddUpCell, memo: Memo) -> None:
        """Attribute later calls in ``cell`` to the step, whose end clears the cache ``memo``."""
        self._memos[id(memo)] = memo
        words, at = self._words, cell.word
        if not at or at in self._before:
            return
        if words[at + 1]:
            # Merge the extremes before resetting them: if the process is killed in between, readers
            # find them twice instead of never.
            words[at + 6] = min(words[at + 3], words[at + 6] or LONGEST_NS)
            words[at + 7] = max(words[at + 4], words[at + 7])
        words[at + 3], words[at + 4] = LONGEST_NS, 0
        cell.least_ns, cell.most_ns = LONGEST_NS, 0
        now = time.monotonic_ns()
        self._before[at] = cell, (now, words[at + 1], words[at + 2], words[at + 5])

    def told(self) -> list[list[int]]:
        """Return a row of numbers for each cell that has grown in the step.

        A row contains the cell's entry, the time of first use since the start of the step, and
        count, sum, covered time, minimum and maximum of the calls; times are in ns.
        """
        rows = []
        for cell, (start, *before) in self._grown():
            at, words = cell.word, self._words
            grown = [now - then for now, then in zip(_sums(words, at), before, strict=True)]
            since = max(0, start - self._step.section.t0)
            rows.append([words[at], since, *grown, words[at + 3], words[at + 4]])
        self._forget()
        return rows

    def move_outside(self) -> None:
        """Move the shares of a cancelled step to the cells outside steps."""
        words = self._words
        for cell, (_, *before) in self._grown():
            to = self._outside(cell, self._step)
            for i, then in zip((1, 2, 5), before, strict=True):
                grown = words[cell.word + i] - then
                if to.word:
                    words[to.word + i] += grown
                words[cell.word + i] -= grown
            if to.word:
                to.least_ns = words[to.word + 3] = min(to.least_ns, words[cell.word + 3])
                to.most_ns = words[to.word + 4] = max(to.most_ns, words[cell.word + 4])
        self._forget()

    def _forget(self) -> None:
        # Clear the caches: with a cached cell, ``watch`` of the next step would not be called.
        for memo in self._memos.values():
            memo.clear()

    def _grown(self) -> list[tuple[AddUpCell, tuple[int, int, int, int]]]:
        words = self._words
        return [pair for at, pair in self._before.items() if words[at + 1] != pair[1][1]]


def _sums(words: Any, at: int) -> tuple[int, int, int]:
    return words[at + 1], words[at + 2], words[at + 5]
