"""Exceptions that the program raises into our code reach it, wherever our code is."""

from __future__ import annotations

import gc
import signal
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from interrupted_calls import raise_at_next_look

import otel_mlperf as om
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.core.interrupts import at_release, in_collections, when_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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

    def drop() -> None:
        at_release(signal.raise_signal, signal.SIGALRM)
        len("the next call")

    with pytest.raises(LimitError) as raised:
        drop()

    assert raised.value.args == (3, "s")


class Object:
    """Something that a weak reference may refer to."""


def released(end: Callable[[], None]) -> list[object]:
    return [at_release(end)]


def gone(end: Callable[[], None]) -> list[object]:
    of = Object()
    end.reference = weakref.ref(of, when_gone(end))  # type: ignore[attr-defined]
    return [of]


@pytest.mark.fault("F95")
@pytest.mark.parametrize("make", [released, gone])
def test_first_instruction(make):
    """What arrives at the first instruction of code that the interpreter calls is raised, too."""
    error, ended = KeyboardInterrupt(), []

    def end() -> None:
        ended.append(True)

    objects = make(end)

    def drop() -> None:
        raise_at_next_look(error)
        del objects[0]
        len("the next call")

    with pytest.raises(KeyboardInterrupt) as raised:
        drop()

    assert raised.value is error
    assert ended == [True]


def test_calls_of_the_interpreter():
    """Without an interrupt the function is called once, or not if nothing ends."""
    ended: list[int] = []
    of = at_release(ended.append, 1)
    when_gone(lambda: ended.append(2))
    assert not ended

    del of
    assert ended == [1]


def test_own_failure(recording):
    """An error of ours in such code is counted, and raised nowhere."""
    recording.may_fail = True
    at_release(lambda: 1 / 0)
    len("the next call")

    assert recording.word(Word.INTERNAL_ERRORS) == 1


@pytest.mark.fault("F95")
def test_what_is_raised_afterwards_is_still_the_programs():
    """An exception with words, which lost its handler on the way, is not taken for one of ours."""

    def handle(*_: Any) -> None:
        raise ValueError("too late")

    def drop() -> None:
        at_release(signal.raise_signal, signal.SIGALRM)
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
    phases = []

    def call(phase: str, info: dict[str, int]) -> None:
        phases.append(phase)
        if len(phases) == 2:
            signal.raise_signal(signal.SIGALRM)

    callback, _ = in_collections(call)
    gc.callbacks.append(callback)
    try:
        with pytest.raises(LimitError):
            gc.collect()
        gc.collect()
    finally:
        gc.callbacks.remove(callback)

    assert phases == ["start", "stop"] * 2


@pytest.mark.fault("F95")
@pytest.mark.usefixtures("_collected_on_demand")
def test_first_instruction_in_a_collection():
    """What arrives before a collection is known to have begun is raised when it has ended."""
    error, phases = KeyboardInterrupt(), []
    callback, _ = in_collections(lambda phase, info: phases.append(phase))
    before = list(gc.callbacks)
    gc.callbacks[:] = [callback]

    def collect() -> None:
        raise_at_next_look(error)
        [gc.collect()]

    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            collect()
        gc.collect()
    finally:
        gc.callbacks[:] = before

    assert raised.value is error
    assert phases == ["stop", "start", "stop"]


@pytest.mark.sampled(1)
@pytest.mark.fault("F95")
@pytest.mark.usefixtures("_collected_on_demand")
@pytest.mark.parametrize("struck", ["start", "stop"])
def test_other_callbacks_of_a_collection(alarm, struck):
    """Where others of the program's are called in it too, none of them is hit, nor a finalizer."""
    called = []

    def call(phase: str, info: dict[str, int]) -> None:
        if phase == struck:
            signal.raise_signal(signal.SIGALRM)

    callback, _ = in_collections(call)

    def other(phase: str, info: dict[str, int]) -> None:
        called.append(phase)

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            called.append("finalizer")

    Cycle()
    before = list(gc.callbacks)
    gc.callbacks[:] = [other, callback]
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
