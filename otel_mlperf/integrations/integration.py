"""Protocol of an integration, and isolation of integration failures from the program."""

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
    """Adapter that reports a framework's steps, phases and sections to the active run.

    An integration uses only the public calls (``om.step()``, ``om.span()``, ``om.phase()``,
    ``om.log()``), which do nothing while no run is active.

    The module that defines an integration is imported when a program starts. It must not import the
    framework, nor any other slow module.
    """

    @property
    def name(self) -> str:
        """Name for ``om.integrate(name)``."""

    @property
    def module(self) -> str:
        """Module whose import switches the integration on: ``lightning.pytorch``."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names below ``module`` that the integration accesses: ``("Trainer.fit", "Callback")``.

        If the framework lacks one of these names, the integration stays off and a warning is
        logged.
        """

    def switch_on(self, framework: ModuleType) -> None:
        """Start recording the framework's loop; the module has been imported.

        Can be called again after ``switch_off``. Exceptions are counted and logged; the import of
        the framework continues.
        """

    def switch_off(self) -> None:
        """Stop recording: from now on, the program itself reports its steps and sections."""


def harmless(function: Callable[P, T]) -> Callable[P, T | None]:
    """Wrap a callback or hook so that its exceptions do not reach the framework.

    A failure is counted and logged once per function, and the call returns None. Exceptions that a
    signal handler of the program raised in the meantime propagate.
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
    """Count an integration's failure and log ``what``, a description of the failure, once.

    Raises:
        BaseException: ``error`` itself, if a signal handler of the program raised it.
    """
    count_error(error)
    warn_once(f"{what}: %s: %s; the program continues", type(error).__name__, error)
