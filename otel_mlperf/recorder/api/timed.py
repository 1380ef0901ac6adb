"""The public call ``timed``, which prints the duration and memory growth of blocks and functions.

Memory growth is that of the process, and of PyTorch's memory on its device.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar, overload

from otel_mlperf.recorder.api.block import Invisible
from otel_mlperf.recorder.api.memory import Memory, memory
from otel_mlperf.recorder.api.span import active, is_compiling, span
from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

F = TypeVar("F", bound="Callable[..., Any]")


class Timed:
    """Context manager and decorator that prints the duration of a block or call at its end."""

    __slots__ = ("_opened", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._opened: list[tuple[Any, Memory, int]] = []

    def __enter__(self) -> Any:
        # Without a run, ``span`` must not be called: it would warn that no run was started.
        section = Invisible() if active() is None else span(self.name)
        entered = section.__enter__()
        self._opened.append((section, memory(), time.perf_counter_ns()))
        return entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        now = time.perf_counter_ns()
        section, had, began = self._opened.pop()
        try:
            section.__exit__(kind, error, trace)
        finally:
            _print(self.name, now - began, had, kind)

    def set(self, **attributes: Any) -> None:
        """Do nothing: the value of the ``with`` statement, the open section, accepts attributes."""

    def __call__(self, function: F) -> F:
        """Return a wrapper of the function that prints the duration of each call."""
        wrapped: Any = _wrapped(self.name, function)
        return wrapped  # type: ignore[no-any-return]


@overload
def timed(name: F, /) -> F: ...
@overload
def timed(name: str, /) -> Timed: ...
def timed(name: Any, /) -> Any:
    """Print the duration and memory growth of a block or function on stderr when it ends.

    ::

        with om.timed("load"): ...     # load 1.23 s, memory +310 MB
        @om.timed("collate")           # each call, of functions and coroutines
        @om.timed                      # under the function's name

    A new peak of PyTorch's memory on the device is printed, too: ``cuda peak 3.20 GB``. During a
    run, the block or call is also recorded as a section, as by ``span``.
    """
    if is_compiling():
        return name if callable(name) else Invisible()
    if callable(name):
        return _wrapped(
            safe_name_text(getattr(name, "__qualname__", type(name).__qualname__)), name
        )
    return Timed(safe_name_text(name))


def _wrapped(name: str, function: Any) -> Any:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        warn_once(
            "timed() supports functions and coroutines; for the generator %r, use span()", name
        )
        return function
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with Timed(name):
                return await function(*args, **kwargs)

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        with Timed(name):
            return function(*args, **kwargs)

    return called


def _print(name: str, duration_ns: int, had: Memory, kind: type[BaseException] | None) -> None:
    try:
        from otel_mlperf.quantities import duration

        failed = "" if kind is None else f", then {kind.__name__}"
        if sys.stderr is not None:
            sys.stderr.write(f"{name} {duration(duration_ns)}{_grown(had, memory())}{failed}\n")
    except Exception as error:  # noqa: BLE001 - stderr may be closed
        internal_error(error)


def _grown(had: Memory, now: Memory) -> str:
    """Return the changes of memory as text, without unchanged and unknown values."""
    from otel_mlperf.quantities import signed_size, size

    kinds = {
        "memory": (had.resident_bytes, now.resident_bytes),
        "cuda": (had.cuda_allocated_bytes or 0, now.cuda_allocated_bytes),
    }
    peak = ""
    if now.cuda_peak_bytes is not None and now.cuda_peak_bytes > (had.cuda_peak_bytes or 0):
        # A peak below an earlier one is unknown: only the program may reset the allocator's peak.
        peak = f", cuda peak {size(now.cuda_peak_bytes)}"
    grown = "".join(
        f", {kind} {signed_size(after - before)}"
        for kind, (before, after) in kinds.items()
        if before is not None and after is not None and before != after
    )
    return grown + peak
