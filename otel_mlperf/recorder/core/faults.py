"""Internal errors of the recorder, and warnings that are logged once per process.

The program does not notice an internal error: the exception is counted in the journal and logged at
most once a minute. Facts that a user should know are logged once per process.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.redaction import IN_PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.journal.journal_writer import Journal

log = logging.getLogger("otel_mlperf")
_MINUTE_NS = 60_000_000_000
_said: set[str] = set()
_MOST_SAID = 256
_MOST_TRIES = 4
"""Limit of retries: a fault of the recorder itself would be retried for ever."""


def say(text: str) -> None:
    """Write a line of this package to stderr, if there is one; never raises by itself."""
    try:
        sys.stderr.write(f"otel_mlperf: {text}\n")
    except Exception as error:  # noqa: BLE001 - stderr may be closed, or missing
        raise_foreign(error)


class _Unconfigured(logging.Handler):
    """Handler that names the package in its warnings if the program has configured no logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if len(log.handlers) > 1 or (log.propagate and logging.root.handlers):
            return
        say(self.format(record))


log.addHandler(_Unconfigured(logging.WARNING))


class _Faults:
    """Number of internal errors, and the functions that count them."""

    total = 0
    next_log_ns = 0
    # Neither function may raise.
    count: Callable[[], None] | None = None
    count_callback: Callable[[], None] | None = None


def count_in(journal: Journal | None) -> None:
    """Count errors and redacted values in a journal from now on; None: nowhere."""
    if journal is None:
        _Faults.count = _Faults.count_callback = None
        IN_PROCESS.count_with(None)
        return
    count = journal.count
    _Faults.count = lambda: count(Word.INTERNAL_ERRORS)
    _Faults.count_callback = lambda: count(Word.CALLBACK_ERRORS)
    IN_PROCESS.count_with(lambda values: count(Word.REDACTED, values))


def internal_error(error: BaseException) -> None:
    """Count an exception of the recorder and log it, at most once a minute.

    Raises:
        BaseException: ``error`` itself, if it is the program's: see ``foreign_errors``.
    """
    raise_foreign(error)
    _count()
    try:
        now = time.monotonic_ns()
        if now >= _Faults.next_log_ns:
            _Faults.next_log_ns = now + _MINUTE_NS
            log.warning(
                "recording failed inside otel_mlperf, %d times so far; the program goes on",
                _Faults.total,
                exc_info=(type(error), error, error.__traceback__),
            )
    except Exception as broken:  # noqa: BLE001 - a closed stderr, a broken log handler
        raise_foreign(broken)


@at_once
def try_again(call: Callable[..., object], *arguments: Any, left: int = _MOST_TRIES) -> None:
    """Complete an interrupted call all the same; an exception of the recorder in it is counted.

    Two concurrent signals are handled one right after the other: the code that cleans up after the
    first one is interrupted by the second.

    Args:
        call: idempotent: does nothing once it has been completed.
        arguments: the arguments of the call.
        left: maximum number of retries.

    Raises:
        BaseException: the call was interrupted once more, and has completed all the same.
    """
    # Each interruption needs a ``try`` of its own: no call returns between two of them.
    try:
        call(*arguments)
    except BaseException as error:  # noqa: BLE001 - the callee decides
        if left:
            try_again(call, *arguments, left=left - 1)
            raise_foreign(error)
        else:
            internal_error(error)


def count_error(error: BaseException) -> None:
    """Count an exception of the recorder, or a caught exit, without logging it.

    Raises:
        Exception: ``error`` itself, if it is the program's.
    """
    _raise_foreign_failure(error)
    _count()


def _raise_foreign_failure(error: BaseException) -> None:
    """Raise an exception of the program, but no exit: only code that intends to catches an exit."""
    if isinstance(error, Exception):
        raise_foreign(error)


def _count() -> None:
    _Faults.total += 1
    if _Faults.count is not None:
        _Faults.count()


def warn_once(text: str, *values: object) -> None:
    """Log a warning once per process; never raises by itself."""
    if text in _said or len(_said) >= _MOST_SAID:
        return
    _said.add(text)
    try:
        log.warning(text, *values)
    except Exception as error:  # noqa: BLE001 - a broken log handler of the program
        raise_foreign(error)


def callback_failed(of: str, callback: object, error: BaseException) -> None:
    """Count and log once that a callback of the program failed; never raises but for ``error``.

    Raises:
        Exception: ``error`` itself, if it is neither the recorder's nor the callback's.
    """
    _raise_foreign_failure(error)
    try:
        if _Faults.count_callback is not None:
            _Faults.count_callback()
        name = getattr(callback, "__qualname__", type(callback).__qualname__)
        warn_once(f"{of}(): {name} failed: %s: %s", type(error).__name__, error)
    except Exception as problem:  # noqa: BLE001 - a __qualname__ of the program's own making
        raise_foreign(problem)
