"""Handling of internal errors of the recorder, and warnings that are logged once per process.

An internal error does not reach the program: it is counted in the journal and logged at most once a
minute. Each warning for the user is logged once per process.
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
_MAX_WARNINGS = 256
_MAX_RETRIES = 4
"""Maximum number of retries: otherwise a fault of the recorder would be retried for ever."""


def say(text: str) -> None:
    """Write a line, prefixed with the package's name, to stderr; errors of stderr are ignored."""
    try:
        sys.stderr.write(f"otel_mlperf: {text}\n")
    except Exception as error:  # noqa: BLE001 - stderr may be closed, or missing
        raise_foreign(error)


class _Unconfigured(logging.Handler):
    """Log handler that prints the package's warnings if the program has configured no logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if len(log.handlers) > 1 or (log.propagate and logging.root.handlers):
            return
        say(self.format(record))


log.addHandler(_Unconfigured(logging.WARNING))


class _Faults:
    total = 0
    next_log_ns = 0
    # None: errors are not counted in a journal. Neither function may raise.
    count: Callable[[], None] | None = None
    count_callback: Callable[[], None] | None = None


def count_in(journal: Journal | None) -> None:
    """Count errors and redacted values in ``journal`` from now on; if it is None, in no journal."""
    if journal is None:
        _Faults.count = _Faults.count_callback = None
        IN_PROCESS.count_with(None)
        return
    count = journal.count
    _Faults.count = lambda: count(Word.INTERNAL_ERRORS)
    _Faults.count_callback = lambda: count(Word.CALLBACK_ERRORS)
    IN_PROCESS.count_with(lambda values: count(Word.REDACTED, values))


def internal_error(error: BaseException) -> None:
    """Count an exception of the recorder; log at most one such exception a minute.

    Raises:
        BaseException: ``error`` itself, if it belongs to the program (see ``foreign_errors``).
    """
    raise_foreign(error)
    _count()
    try:
        now = time.monotonic_ns()
        if now >= _Faults.next_log_ns:
            _Faults.next_log_ns = now + _MINUTE_NS
            log.warning(
                "recording failed inside otel_mlperf, %d times so far; the program continues",
                _Faults.total,
                exc_info=(type(error), error, error.__traceback__),
            )
    except Exception as broken:  # noqa: BLE001 - a closed stderr, a broken log handler
        raise_foreign(broken)


@at_once
def try_again(call: Callable[..., object], *arguments: Any, left: int = _MAX_RETRIES) -> None:
    """Repeat an interrupted call until it completes; count an internal error of the last attempt.

    More than one retry may be needed: the second of two concurrent signals interrupts the clean-up
    after the first.

    Args:
        call: an idempotent function, because the interrupted call may have completed.
        arguments: the arguments of the call.
        left: maximum number of retries.

    Raises:
        BaseException: the program's exception that interrupted an attempt; it is raised after the
            last attempt.
    """
    # Each retry runs within the ``except`` of the previous one. A loop would have gaps between two
    # ``try`` blocks, in which a signal could interrupt it.
    try:
        call(*arguments)
    except BaseException as error:  # noqa: BLE001 - the callee decides
        if left:
            try_again(call, *arguments, left=left - 1)
            raise_foreign(error)
        else:
            internal_error(error)


def count_error(error: BaseException) -> None:
    """Count an exception of the recorder, or an exit that the recorder caught; log nothing.

    Raises:
        Exception: ``error`` itself, if it belongs to the program.
    """
    _raise_foreign_failure(error)
    _count()


def _raise_foreign_failure(error: BaseException) -> None:
    """Raise ``error`` if it is an ``Exception`` of the program, but not if it is an exit."""
    if isinstance(error, Exception):
        raise_foreign(error)


def _count() -> None:
    _Faults.total += 1
    if _Faults.count is not None:
        _Faults.count()


def warn_once(text: str, *values: object) -> None:
    """Log a warning, unless one with the same ``text`` (a ``%`` format) was logged before.

    A process logs at most 256 warnings. Errors of the log handler are ignored.
    """
    if text in _said or len(_said) >= _MAX_WARNINGS:
        return
    _said.add(text)
    try:
        log.warning(text, *values)
    except Exception as error:  # noqa: BLE001 - a broken log handler of the program
        raise_foreign(error)


def callback_failed(of: str, callback: object, error: BaseException) -> None:
    """Count the failure of a callback that the public call ``of`` registered; log it once.

    Raises:
        Exception: ``error`` itself, if it belongs to the program but not to the callback.
    """
    _raise_foreign_failure(error)
    try:
        if _Faults.count_callback is not None:
            _Faults.count_callback()
        name = getattr(callback, "__qualname__", type(callback).__qualname__)
        warn_once(f"{of}(): {name} failed: %s: %s", type(error).__name__, error)
    except Exception as problem:  # noqa: BLE001 - a __qualname__ of the program's own making
        raise_foreign(problem)
