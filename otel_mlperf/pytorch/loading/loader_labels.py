"""Which loader is it, in a word that stays the same from epoch to epoch?

The class of its dataset. Another dataset of the same class has a number behind it; the number of
one that is gone is given again, so that a dataset which is made anew for each epoch keeps its word.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from otel_mlperf import names
from otel_mlperf.recorder.core.attribute_values import safe_name_text

_MOST_CLASSES: Final = 16
_MOST_OF_CLASS: Final = 4
"""What comes beyond either is one loader."""


class LoaderLabels:
    """The words for the datasets of this process."""

    def __init__(self) -> None:
        self._known: dict[str, list[Any]] = {}

    def of(self, dataset: object) -> str:
        """``CIFAR10``; ``CIFAR10 2`` for the second that there is at a time."""
        text = safe_name_text(type(dataset).__name__)
        if text not in self._known and len(self._known) >= _MOST_CLASSES:
            return names.OTHER
        places = self._known.setdefault(text, [])
        number = _number(places, dataset)
        return text if number == 1 else f"{text} {number}"


def _number(places: list[Any], dataset: object) -> int:
    """Its place among those of its class, counted from one."""
    there = [place() for place in places]
    for at, known in enumerate(there):
        if known is dataset:
            return at + 1
    free = next((at for at, known in enumerate(there) if known is None), len(places))
    if free >= _MOST_OF_CLASS:
        return _MOST_OF_CLASS
    try:
        places[free : free + 1] = [weakref.ref(dataset)]
    except TypeError:  # a list, say: nobody can tell whether it is still there
        return 1
    return free + 1
