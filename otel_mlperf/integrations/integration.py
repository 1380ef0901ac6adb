"""Protocol of an integration, and the isolation of its failures from the program."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from otel_mlperf.recorder.core.faults import count_error, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

P = ParamSpec("P")
T = TypeVar("T")


class Integration(Protocol):
    """A framework whose training loop reports its steps, phases and sections to the active run.

    It uses only the public calls (``om.step()``, ``om.span()``, ``om.phase()``, ``om.log()``),
    which do nothing while no run is active.

    The module that defines it is imported when a program starts, so it must not import the
    framework, nor anything else that is slow to import.
    """

    @property
    def name(self) -> str:
        """The name for ``om.integrate(name)``."""

    @property
    def module(self) -> str:
        """The module whose import switches it on: ``lightning.pytorch``."""

    @property
    def needs(self) -> tuple[str, ...]:
        """What it accesses, as names below that module: ``("Trainer.fit", "Callback")``.

        If a version of the framework lacks one of them, nothing is changed and a warning is logged.
        """

    def switch_on(self, framework: ModuleType) -> None:
        """Record the framework's loop from now on; the module is imported.

        It is called again after ``switch_off``. What it raises is counted and logged; the import
        continues.
        """

    def switch_off(self) -> None:
        """Do nothing from now on: the program itself reports what is recorded."""


def harmless(function: Callable[P, T]) -> Callable[P, T | None]:
    """Wrap a function for calls by a framework: its exceptions end there.

    It is for callbacks and hooks of an integration. A failure is counted, logged once per function,
    and returns None. Exceptions that a signal handler of the program raised in the meantime
    propagate.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - recording never raises
            report_integration_failure(
                f"{function.__module__}.{function.__qualname__} failed", error
            )
            return None

    return call


def report_integration_failure(what: str, error: BaseException) -> None:
    """Count a failure of an integration, and log it once.

    Raises:
        BaseException: ``error`` itself, where a signal handler of the program raised it.
    """
    count_error(error)
    warn_once(f"{what}: %s: %s; the program continues", type(error).__name__, error)
