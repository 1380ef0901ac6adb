"""The figures of a loader's iterator are kept for as long as it exists."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import pytest
from interrupted_calls import interruptions

from otel_mlperf.pytorch import loading
from otel_mlperf.pytorch.loading.loader_figures import LoaderFigures, Loaders

if TYPE_CHECKING:
    from types import ModuleType


class Iterator:
    """What a loader gives batches by."""


def forget_iterator() -> None:
    """An iterator is made, and is gone."""
    loaders = Loaders()
    loaders.add(Iterator(), LoaderFigures("data", 0, 0))
    assert not loaders._known


def test_another_iterator_has_other_figures() -> None:
    """Each has its own, and one that nobody saw made has none."""
    loaders, one, another = Loaders(), Iterator(), Iterator()
    figures = LoaderFigures("data", 0, 0)
    loaders.add(one, figures)

    assert loaders.of(one) is figures
    assert loaders.of(another) is None


@pytest.mark.fault("F95")
@pytest.mark.parametrize("package", [loading, weakref])
def test_interrupt_as_an_iterator_is_forgotten(package: ModuleType) -> None:
    """What comes as a weak reference calls back arrives, and the iterator is forgotten."""
    forget_iterator()
    for moment, raised, arrived in interruptions(package, KeyboardInterrupt, forget_iterator):
        assert arrived is raised, moment.where
