"""Exceptions that the program raises into our code are distinguished from our own failures."""

from __future__ import annotations

import functools
import signal
from typing import TYPE_CHECKING, Any

import pytest

from otel_mlperf.foreign_errors import is_foreign, raise_foreign

if TYPE_CHECKING:
    from collections.abc import Callable


class LimitError(Exception):
    """One that makes its words up."""

    def __init__(self) -> None:
        super().__init__("too slow")


def fail(*_: Any) -> None:
    raise TimeoutError("too slow")


class Handler:
    def __call__(self, *_: Any) -> None:
        fail()


@functools.wraps(fail)
def wrapped(*arguments: Any, **named: Any) -> None:
    fail(*arguments, **named)


def without_arguments() -> Callable[..., None]:
    def handler(number, frame):
        del frame
        raise TimeoutError("too slow")

    return handler


@pytest.mark.fault("F95")
@pytest.mark.parametrize(
    "handler",
    [fail, lambda signum, frame: fail(), lambda *_: fail(), Handler(), wrapped,
     functools.partial(fail, "more"), without_arguments()],
    ids=["function", "names", "stars", "object", "wrapped", "partial", "forgotten"],
)  # fmt: skip
def test_handlers(handler):
    """What a signal handler raises is the program's, however the handler is written."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        error = caught(lambda: signal.raise_signal(signal.SIGALRM))
        assert isinstance(error, TimeoutError)
        assert is_foreign(error)
        with pytest.raises(TimeoutError):
            raise_foreign(error)
    finally:
        signal.signal(signal.SIGALRM, before)


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - a test of any
        return error
    raise AssertionError("nothing was raised")


class Injected:
    """Raises as the interpreter does for another thread: at no instruction that raises."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._generator = self._wait()
        next(self._generator)
        self._kind = kind

    def _wait(self):
        yield

    def __call__(self) -> None:
        self._generator.throw(self._kind)


@pytest.mark.fault("F95")
@pytest.mark.parametrize("kind", [TimeoutError, ValueError, LimitError, KeyboardInterrupt])
def test_injected(kind):
    """So is what another thread injects: it names a class, and nothing there raises anything."""
    assert is_foreign(caught(Injected(kind)))


def fail_plainly() -> None:
    raise ValueError


@pytest.mark.parametrize(
    "call",
    [[].pop, lambda: int("x"), lambda: next(iter([])), lambda: {}["x"],
     fail_plainly, lambda: None.x],
    ids=["pop", "int", "next", "key", "raise", "attribute"],
)  # fmt: skip
def test_own(call):
    """What our code fails with, or what it calls on purpose, is not."""
    assert not is_foreign(caught(call))
