"""Shared by tests of the inside of loaders: a run in which it is observed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from otel_mlperf.integrations.data_loader import DataLoaders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Seen:
    """What a run has counted of its loaders."""

    def __init__(self, trained: Any) -> None:
        self.recorder, self._reader = trained.recorder, trained._reader
        self._entries: dict[int, list[Any]] = {}

    def by_label(self, metric: Any, *keys: str) -> dict[Any, float]:
        """Counters, and sums of histograms, by the values of those labels."""
        self._entries |= self._reader.new_entries()
        found: dict[Any, float] = {}
        for cell in self._reader.cells():
            _, _, name, _, labels, *_ = [*self._entries[int(cell[0])], *[None] * 5]
            if name == metric.name and (metric.instrument != "histogram" or cell[7] == 1):
                key = tuple(dict(labels)[key] for key in keys)
                value = float(cell[1:2].view(np.float64)[0])
                found[key[0] if len(key) == 1 else key] = value
        return found


@pytest.fixture
def seen_in() -> type[Seen]:
    """What a run has counted of its loaders, of that run."""
    return Seen


@pytest.fixture
def seen(train: Callable[..., Any]) -> Iterator[Seen]:
    """A run in which the inside of loaders is seen, and nothing of it afterwards."""
    trained, integration = train(), DataLoaders()
    integration.switch_on(torch)
    yield Seen(trained)
    integration.switch_off()
