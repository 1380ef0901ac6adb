"""Callbacks that the program registers, and the handling of their failures.

A callback's failure is counted and logged once; training continues. An exception that is not an
``Exception`` (Ctrl-C, an exit) is meant for the program and propagates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from otel_mlperf.errors import ConfigError
from otel_mlperf.recorder.core.faults import callback_failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.journal.bulletin import RunWarning

C = TypeVar("C", bound="Callable[..., object]")


class Callbacks(Generic[C]):
    """The callbacks of one event.

    Args:
        name: the public call that registers the callbacks.
        arguments: the number of arguments of each callback, as text for error messages.
    """

    def __init__(self, name: str, arguments: str) -> None:
        self._name, self._arguments = name, arguments
        # Replaced by a new tuple at each change, so that a running callback may register callbacks
        # and unregister any of them, including itself.
        self.all: tuple[C, ...] = ()

    def add(self, callback: C) -> C:
        """Register a callback, to be called after the earlier ones, and return it.

        Raises:
            ConfigError: ``callback`` is not callable.
        """
        if not callable(callback):
            raise ConfigError(
                f"{self._name}({callback!r}): expected a function of {self._arguments}"
            )
        self.all = (*self.all, callback)
        return callback

    def remove(self, callback: object) -> None:
        """Unregister a callback; an unknown callback is ignored."""
        self.all = tuple(registered for registered in self.all if registered != callback)

    def tell(self, *arguments: Any) -> None:
        """Call all callbacks; an ``Exception`` in a callback is only counted and logged once."""
        for callback in self.all:
            try:
                callback(*arguments)
            except Exception as error:  # noqa: BLE001 - the program's own; training continues
                callback_failed(self._name, callback, error)


WARNING: Callbacks[Callable[[RunWarning], object]] = Callbacks("on_warning", "one argument")
STEP_BEGIN: Callbacks[Callable[[str, int], object]] = Callbacks("on_step_begin", "two arguments")
STEP_END: Callbacks[Callable[[str, int], object]] = Callbacks("on_step_end", "two arguments")
PHASE: Callbacks[Callable[[str, bool], object]] = Callbacks("on_phase", "two arguments")
EVERY: tuple[Callbacks[Any], ...] = (WARNING, STEP_BEGIN, STEP_END, PHASE)
