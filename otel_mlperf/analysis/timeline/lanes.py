"""On which line of a track does each slice lie, so that those on one line nest?

Viewers draw what begins later and ends earlier as inside. So only what truly is inside may lie
on the line of its parent; siblings that overlap (tasks, roll-ups) and children that outlive their
parent get lines of their own.
"""

from __future__ import annotations

from typing import NamedTuple


class Placed(NamedTuple):
    """Where a slice lies."""

    lane: int
    """Counts the lines of the track from 0."""
    ended: list[tuple[int, int]]
    """Line and end of the slices that had ended before, inner ones first."""


class _Open(NamedTuple):
    end: int
    span: int


class Lanes:
    """The lines of one track.

    Slices come by their start, longer ones first, parents before children.
    """

    def __init__(self) -> None:
        self._lanes: list[list[_Open]] = []
        self._where: dict[int, int] = {}

    def place(self, start: int, end: int, span: int, parent: int) -> Placed:
        """The line for a slice, which is open on it from now on; 0 as ``span``: has no children."""
        ended: list[tuple[int, int]] = []
        lane = self._below_parent(start, end, parent, ended)
        if lane is None:
            lane = self._elsewhere(start, end, parent in self._where, ended)
        self._lanes[lane].append(_Open(end, span))
        if span:
            self._where[span] = lane
        return Placed(lane, ended)

    def close(self) -> list[tuple[int, int]]:
        """Line and end of all slices that are still open, inner ones first."""
        ended = [
            (number, one.end) for number, lane in enumerate(self._lanes) for one in reversed(lane)
        ]
        self._lanes, self._where = [], {}
        return ended

    def _below_parent(
        self, start: int, end: int, parent: int, ended: list[tuple[int, int]]
    ) -> int | None:
        lane = self._where.get(parent)
        if lane is None:
            return None
        self._leave(lane, start, parent, ended)
        top = self._lanes[lane][-1] if self._lanes[lane] else None
        return lane if top is not None and top.span == parent and end <= top.end else None

    def _elsewhere(
        self, start: int, end: int, is_related: bool, ended: list[tuple[int, int]]
    ) -> int:
        """The first line that is free; or, for what has no parent here, that holds all of it."""
        # The first that is free, so that a track has as few lines as overlap at any time.
        for number, lane in enumerate(self._lanes):
            self._leave(number, start, 0, ended)
            if not lane or (not is_related and end <= lane[-1].end):
                return number
        self._lanes.append([])
        return len(self._lanes) - 1

    def _leave(self, number: int, start: int, parent: int, ended: list[tuple[int, int]]) -> None:
        """Ends what ended up to ``start``; a parent may have a child of no length at its end."""
        lane = self._lanes[number]
        while lane and lane[-1].end <= start:
            if lane[-1].end == start and parent and lane[-1].span == parent:
                return
            one = lane.pop()
            ended.append((number, one.end))
            if self._where.get(one.span) == number:
                del self._where[one.span]
