"""Exceptions that the program raises into our code reach it, wherever our code is."""

from __future__ import annotations

import gc
import signal
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import otel_mlperf as om
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.recorder.core.interrupts import at_once, raises_afterwards

if TYPE_CHECKING:
    from collections.abc import Iterator


class LimitError(Exception):
    """The program's, which needs its words."""

    def __init__(self, limit: int, unit: str) -> None:
        super().__init__(limit, unit)


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM raises."""

    def handle(*_: Any) -> None:
        raise LimitError(3, "s")

    before = signal.signal(signal.SIGALRM, handle)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.fault("F95")
def test_finalizer(alarm):
    """What a handler raises in a finalizer arrives behind it, and is the very exception."""

    class Object:
        def end(self) -> None:
            signal.raise_signal(signal.SIGALRM)

        __del__ = raises_afterwards(end)

    def drop() -> None:
        Object()
        len("the next call")

    with pytest.raises(LimitError) as raised:
        drop()

    assert raised.value.args == (3, "s")


@pytest.mark.fault("F95")
def test_what_is_raised_afterwards_is_still_the_programs():
    """An exception with words, which lost its handler on the way, is not taken for one of ours."""

    def handle(*_: Any) -> None:
        raise ValueError("too late")

    class Object:
        def end(self) -> None:
            signal.raise_signal(signal.SIGALRM)

        __del__ = raises_afterwards(end)

    def drop() -> None:
        Object()
        len("the next call")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(ValueError, match="too late") as raised:
            drop()
    finally:
        signal.signal(signal.SIGALRM, before)

    assert is_foreign(raised.value)


@pytest.fixture
def _collected_on_demand():
    """No collection is begun but by the test: what it has called in one is called once."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.fault("F95")
@pytest.mark.usefixtures("_collected_on_demand")
def test_collection(alarm):
    """The same of a callback of the garbage collector."""

    @raises_afterwards
    def call(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            signal.raise_signal(signal.SIGALRM)

    gc.callbacks.append(call)
    try:
        with pytest.raises(LimitError):
            gc.collect()
    finally:
        gc.callbacks.remove(call)


@pytest.mark.sampled(1)
@pytest.mark.fault("F95")
@pytest.mark.usefixtures("_collected_on_demand")
@pytest.mark.parametrize("struck", ["start", "stop"])
def test_other_callbacks_of_a_collection(alarm, struck):
    """Where others of the program's are called in it too, none of them is hit, nor a finalizer."""
    called = []

    @raises_afterwards
    def call(phase: str, info: dict[str, int]) -> None:
        if phase == struck:
            signal.raise_signal(signal.SIGALRM)

    def other(phase: str, info: dict[str, int]) -> None:
        called.append(phase)

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            called.append("finalizer")

    Cycle()
    before = list(gc.callbacks)
    gc.callbacks[:] = [other, call]
    try:
        with pytest.raises(LimitError):
            gc.collect()
    finally:
        gc.callbacks[:] = before

    assert called == ["start", "finalizer", "stop"]


@pytest.mark.fault("F95")
def test_a_run_of_the_past(recording):
    """No Python is called as it is forgotten, in which what a handler raises would be dropped."""
    om.stop()
    called = [reference.__callback__ for reference in weakref.getweakrefs(recording.recorder)]

    assert not any(called)


def test_first_instruction():
    """The first ``try`` of a function covers its first instruction; what it does stays the same."""

    def function(value: int) -> Any:
        known = value + 1
        try:
            return 1 / known
        except ZeroDivisionError:
            return locals().get("known")

    def entry(of: Any) -> list[int]:
        return list(of.__code__.co_exceptiontable[:1])

    before = entry(function)
    assert before != [0x80]
    assert entry(at_once(function)) == [0x80]
    assert (function(1), function(-1)) == (0.5, 0)


def test_long_functions():
    """Also of a function whose ``try`` is long, and of one that has none."""
    body = ["def f(value):", "    try:", *(f"        value += {i}" for i in range(3000))]
    handler = ["    except KeyError:", "        value = 0", "    return value"]
    made: dict[str, Any] = {}
    exec("\n".join([*body, *handler]), made)
    assert at_once(made["f"])(1) == 1 + sum(range(3000))

    @at_once
    def plain() -> int:
        return 3

    assert plain() == 3
