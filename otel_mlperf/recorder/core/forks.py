"""Registration of functions that run to completion in each forked child, despite signals.

The interpreter calls the functions that ``os.register_at_fork`` registers. If a signal handler
raises an exception in such a function, the interpreter prints and drops the exception, and the rest
of the function does not run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from otel_mlperf.recorder.core.faults import internal_error, try_again
from otel_mlperf.recorder.core.interrupts import at_once, raises_afterwards

if TYPE_CHECKING:
    from collections.abc import Callable


def call_in_children(function: Callable[[], object]) -> None:
    """Call a function in each forked child before ``fork`` returns; permanent for the process.

    Args:
        function: idempotent, because an interrupted call is repeated. The interrupting exception is
            raised when ``fork`` returns; an internal error of the recorder is only counted.
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
