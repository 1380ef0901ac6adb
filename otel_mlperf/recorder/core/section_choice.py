"""Choice whether sections are recorded, only aggregated, or excluded.

Settings select sections by category and by name pattern. The choice is made once per name, so
recorded sections have no further cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Collection

Choice = Literal["record", "aggregate", "exclude"]
_MAX_CACHED: Final = 4096
"""Maximum number of names with a cached choice; further names are matched at each call."""


class SectionChoice:
    """Recording choice of each section, by its name and category.

    Args:
        exclude: categories and shell patterns of names of excluded sections.
        aggregate: categories and shell patterns of names of sections that are only aggregated;
            ``exclude`` takes precedence.
    """

    def __init__(self, exclude: Collection[str], aggregate: Collection[str]) -> None:
        self._excluded, self._aggregated = exclude, aggregate
        self.is_used = bool(exclude or aggregate)
        self._known: dict[tuple[str, str], Choice] = {}

    def of(self, name: str, category: str) -> Choice:
        """Return the choice for a section of that name and category.

        The wait for data is always recorded, because it starts a step.
        """
        choice = self._known.get((name, category))
        if choice is None:
            choice = self._decided(name, category)
            if len(self._known) < _MAX_CACHED:
                self._known[name, category] = choice
        return choice

    def _decided(self, name: str, category: str) -> Choice:
        if name == names.SPAN_DATA:
            return "record"
        if matches(self._excluded, name, category):
            return "exclude"
        return "aggregate" if matches(self._aggregated, name, category) else "record"


def matches(wanted: Collection[str], name: str, category: str) -> bool:
    """Return whether an item of ``wanted`` is the category or a shell pattern of the name."""
    if not wanted:
        return False
    from fnmatch import fnmatchcase  # imports regular expressions

    return any(category == item or fnmatchcase(name, item) for item in wanted)


def words(setting: str) -> tuple[str, ...]:
    """Return the items of a comma-separated setting, without empty ones."""
    return tuple(filter(None, setting.split(",")))
