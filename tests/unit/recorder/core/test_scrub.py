"""What is recorded of an exception is safe: for the program, and for its secrets."""

from __future__ import annotations

import sys

import pytest

import otel_mlperf as om
from otel_mlperf.recorder.core.scrub import (
    MESSAGE_BYTES,
    STACK_BYTES,
    describe_exception,
)


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_type_message_stack():
    """An exception is its type, message and the frames it went through."""
    kind, message, stack = describe_exception(raised(KeyError("x")))

    assert (kind, message) == ("KeyError", "'x'")
    assert __file__ in stack
    assert "in raised" in stack


def test_type_of_a_package():
    """A type that is not built in is named with its module."""
    assert describe_exception(om.ConfigError("x"))[0] == "otel_mlperf.errors.ConfigError"


@pytest.mark.fault("S10")
def test_without_text():
    """Message and stack are left out where that is wished; the type stays."""
    assert describe_exception(raised(KeyError("x")), with_text=False) == ["KeyError", "", ""]


@pytest.mark.fault("F51", "S12")
def test_limits():
    """Five megabytes of message and a deep stack are cut to their limits."""

    def dive(n):
        return dive(n - 1) if n else 1 / 0

    with pytest.raises(ZeroDivisionError) as deep:
        dive(500)
    _, message, _ = describe_exception(ValueError("x" * 5_000_000))
    _, _, stack = describe_exception(deep.value)

    assert len(message.encode()) == MESSAGE_BYTES
    assert 0 < len(stack.encode()) <= STACK_BYTES
    assert stack.count("\n") < 100


class Broken(Exception):
    """Its text cannot be had."""

    def __str__(self):
        raise RuntimeError("no")


class Odd(Exception):
    """Its text is not text."""

    def __str__(self):
        return NotImplemented


@pytest.mark.fault("F51")
@pytest.mark.parametrize("error", [Broken(), Odd(), ValueError("\ud800"), ValueError("a\0b"),
                                   ExceptionGroup("many", [KeyError("x")])])  # fmt: skip
def test_program_sees_its_own_exception(recording, error):
    """Whatever an exception's text does, the program gets this very exception."""
    with pytest.raises(type(error)) as caught, om.span("work"):
        raise error

    assert caught.value is error
    row = recording.one("work")
    assert row.is_error
    assert row.error[0].endswith(type(error).__name__)


@pytest.mark.fault("F51")
def test_cyclic_cause(recording):
    """Exceptions that cause each other are recorded, once."""
    first, second = KeyError("1"), KeyError("2")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(KeyError), om.span("work"):
        raise first

    assert recording.one("work").error[:2] == ["KeyError", "'1'"]


@pytest.mark.fault("F23")
@pytest.mark.parametrize(
    ("error", "is_error"),
    [(SystemExit(3), True), (SystemExit(0), False), (SystemExit(), False),
     (KeyboardInterrupt(), True), (GeneratorExit(), False), (StopIteration(), False)],
)  # fmt: skip
def test_what_is_a_failure(recording, error, is_error):
    """Ctrl-C and a failing exit are errors; a clean exit and the end of an iteration are not."""
    with pytest.raises(type(error)), om.span("work"):
        raise error

    assert recording.one("work").is_error is is_error


def test_stack_once(recording):
    """An exception that crosses several sections has its stack on the innermost only."""
    with pytest.raises(KeyError), om.span("outer"), om.span("inner"):
        raise KeyError("x")

    assert recording.one("inner").error[2] != ""
    assert recording.one("outer").error == ["KeyError", "'x'", ""]


@pytest.mark.fault("F51")
def test_deep_recursion_error(recording):
    """A recursion error through hundreds of sections is recorded on each, quickly."""

    @om.span
    def dive():
        dive()

    with pytest.raises(RecursionError):
        dive()

    rows = recording.sections("dive")
    assert len(rows) > sys.getrecursionlimit() // 4
    # The innermost ones have no frame left to describe anything with.
    assert sum(row.is_error for row in rows) > len(rows) * 0.9
    recording.may_fail = True


@pytest.mark.fault("S10")
def test_exception_text_setting(start):
    """With ``exception_text`` off, only the type is recorded."""
    recording = start(exception_text=False)
    with pytest.raises(KeyError), om.span("work"):
        raise KeyError("secret")

    assert recording.one("work").error == ["KeyError", "", ""]
