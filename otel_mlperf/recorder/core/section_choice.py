"""Selection of sections: recorded, only aggregated, or left out.

Settings select sections by category and by a pattern of the name. The decision is made once per
name, so that it costs nothing for sections that are recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Collection

Choice = Literal["record", "aggregate", "exclude"]
_MOST: Final = 4096
"""Number of names whose choice is cached; for further names it is derived each time."""


class SectionChoice:
    """Selection of what happens to sections, by their name.

    Args:
        exclude: categories, and shell-style patterns of names.
        aggregate: the same for aggregation; names in both are left out.
    """

    def __init__(self, exclude: Collection[str], aggregate: Collection[str]) -> None:
        self._excluded, self._aggregated = exclude, aggregate
        self.is_used = bool(exclude or aggregate)
        self._known: dict[tuple[str, str], Choice] = {}

    def of(self, name: str, category: str) -> Choice:
        """Return the choice for a section of that name and category.

        The wait for data is always recorded: it is the start of a step.
        """
        choice = self._known.get((name, category))
        if choice is None:
            choice = self._decided(name, category)
            if len(self._known) < _MOST:
                self._known[name, category] = choice
        return choice

    def _decided(self, name: str, category: str) -> Choice:
        if name == names.SPAN_DATA:
            return "record"
        if matches(self._excluded, name, category):
            return "exclude"
        return "aggregate" if matches(self._aggregated, name, category) else "record"


def matches(wanted: Collection[str], name: str, category: str) -> bool:
    """Return whether one of the words is the category, or a pattern of the name."""
    if not wanted:
        return False
    from fnmatch import fnmatchcase  # imports regular expressions

    return any(category == word or fnmatchcase(name, word) for word in wanted)


def words(setting: str) -> tuple[str, ...]:
    """Return the words of a setting, separated by commas."""
    return tuple(filter(None, setting.split(",")))
