"""Protocol of an integration, and the isolation of its failures from the program."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from otel_mlperf.recorder.core.faults import count_error, say_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

P = ParamSpec("P")
T = TypeVar("T")


class Integration(Protocol):
    """A framework whose training loop says its steps, phases and sections to the active run.

    It speaks to the run by the public calls alone (``om.step()``, ``om.span()``, ``om.phase()``,
    ``om.log()``), which do nothing while no run is active.

    The module that defines it is imported when a program starts, so it must not import the
    framework, nor anything else that takes long.
    """

    @property
    def name(self) -> str:
        """What ``om.integrate(name)`` knows it by."""

    @property
    def module(self) -> str:
        """The module whose import wakes it: ``lightning.pytorch``."""

    @property
    def needs(self) -> tuple[str, ...]:
        """What it touches, as names below that module: ``("Trainer.fit", "Callback")``.

        Of a version of the framework that lacks one of them nothing is touched, which is said.
        """

    def switch_on(self, framework: ModuleType) -> None:
        """The module has just been imported, or was before: from now on its loop is recorded.

        Called again after ``switch_off``. What it raises is counted and said; the import goes on.
        """

    def switch_off(self) -> None:
        """The program says from now on itself what is recorded; what is in place does nothing."""


def harmless(function: Callable[P, T]) -> Callable[P, T | None]:
    """Makes a function fit to be called by a framework: what it raises ends there.

    For callbacks and hooks of an integration. A failure is counted, said once for each function,
    and gives None. Exceptions that a signal handler of the program raised meanwhile go on.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - recording never raises
            tell_broken(f"{function.__module__}.{function.__qualname__} failed", error)
            return None

    return call


def tell_broken(what: str, error: BaseException) -> None:
    """Counts a failure of an integration, and says it once.

    Raises:
        BaseException: ``error`` itself, where a signal handler of the program raised it.
    """
    count_error(error)
    say_once(f"{what}: %s: %s; the program goes on", type(error).__name__, error)
