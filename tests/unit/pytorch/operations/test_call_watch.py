"""The watcher of a module's calls is kept for as long as the module exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from interrupted_calls import interruptions

from otel_mlperf.pytorch import operations
from otel_mlperf.pytorch.operations.model_work import CallWatch

if TYPE_CHECKING:
    from collections.abc import Callable


class Module:
    """What a program calls."""


class Calls:
    """Hears of calls."""

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Nothing is done with it."""


def watch_of(found: Callable[[Any], Calls]) -> CallWatch:
    watch = CallWatch()
    watch.find = found
    return watch


def forget_module() -> None:
    """A module is called, and is gone."""
    calls = Calls()
    watch = watch_of(lambda _: calls)
    watch.of((Module(), (), {}))
    assert not watch._of


def test_a_module_is_looked_for_once() -> None:
    """The watcher that was found at its first call hears of the next."""
    found: list[Calls] = []

    def find(_: Any) -> Calls:
        found.append(Calls())
        return found[-1]

    watch, module = watch_of(find), Module()
    for _ in range(2):
        assert watch.of((module, (), {})) is watch
    assert len(found) == 1


@pytest.mark.fault("F95")
def test_interrupt_as_a_module_is_forgotten() -> None:
    """What comes as its weak reference calls back arrives, and the module is forgotten."""
    forget_module()
    for moment, raised, arrived in interruptions(operations, KeyboardInterrupt, forget_module):
        assert arrived is raised, moment.where
