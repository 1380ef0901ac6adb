"""Functions that run in each forked child to completion, despite an interrupt.

The interpreter itself calls the functions that are registered for a fork. An exception that a
signal handler raises in such a function is printed and dropped; the rest of the function is lost.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.interrupts import raise_afterwards

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def call_in_children(function: Callable[[], object]) -> None:
    """Call a function in each forked child before ``fork`` returns; it cannot be unregistered.

    Args:
        function: idempotent: does nothing once it has been completed. If it is interrupted, it is
            called again, and the exception is raised when ``fork`` returns. An error of the
            recorder itself is counted.
    """
    waiting = _call_in_child(function)
    next(waiting)
    # A function of C: see `interrupts`. A grandchild finds this generator at its end.
    os.register_at_fork(after_in_child=partial(next, waiting, None))


def _call_in_child(function: Callable[[], object]) -> Generator[None]:
    try:
        yield
        function()
        call_in_children(function)
    except GeneratorExit:
        return  # the interpreter ends
    except BaseException as problem:  # noqa: BLE001 - decided below
        try:
            function()
            call_in_children(function)
            internal_error(problem)
        except BaseException as error:  # noqa: BLE001 - decided there
            raise_afterwards(error)
