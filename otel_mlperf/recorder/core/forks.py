"""Functions that run in each forked child to completion, despite interrupts.

The interpreter itself calls the functions that are registered for a fork. An exception that a
signal handler raises in such a function is printed and dropped; the rest of the function is lost.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from otel_mlperf.recorder.core.faults import internal_error, try_again
from otel_mlperf.recorder.core.interrupts import at_once, raises_afterwards

if TYPE_CHECKING:
    from collections.abc import Callable


def call_in_children(function: Callable[[], object]) -> None:
    """Call a function in each forked child before ``fork`` returns; it cannot be unregistered.

    Args:
        function: idempotent: does nothing once it has been completed. If it is interrupted, it is
            called again, and the exception is raised when ``fork`` returns. An error of the
            recorder itself is counted.
    """

    @raises_afterwards
    @at_once
    def call() -> None:
        try:
            function()
        except BaseException as problem:  # noqa: BLE001 - decided below
            try_again(function)
            internal_error(problem)

    os.register_at_fork(after_in_child=call)
