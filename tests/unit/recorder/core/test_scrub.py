"""Is what is recorded of an exception safe: for the program, and for its secrets?"""

from __future__ import annotations

import sys

import pytest

import otel_mlperf as om
from otel_mlperf.recorder.core.scrub import (
    HIDDEN,
    MESSAGE_BYTES,
    STACK_BYTES,
    describe_exception,
    redact,
)

SECRETS = [
    "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "sk-proj-abcdefghijklmnop1234",
    "ghp_abcdefghijklmnopqrstuvwxyz012345",
    "github_pat_11ABCDEFG0abcdefghijkl",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA-abcdefghijklmnopqrstuv12345",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefgh",
    "xoxb-1234567890-abcdef",
    "glpat-abcdefghij1234567890",
]
NAMED = [
    "password=hunter22",
    "Password: hunter22",
    'api_key="hunter22"',
    "API-KEY: hunter22",
    "secret = 'hunter22'",
    "aws_secret_access_key=hunter22",
    "Authorization: Bearer hunter22",
    "token=hunter22",
    "access_token: hunter22",
    "https://user:hunter22@example.com/x",
    "postgres://root:hunter22@db/x",
    '{"password": "hunter22"}',
]
HARMLESS = [
    "token_count=512",
    "tokenizer: fast",
    "the password was wrong",
    "max_tokens=10",
    "task-123",
    "shape [64, 3] and dtype float32",
    "https://example.com/a@b",
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "secretary: present",
    "disk-sk",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_keys_are_hidden(secret):
    """Keys of known forms are blacked out, wherever they stand."""
    assert redact(f"cannot use {secret}, sorry") == f"cannot use {HIDDEN}, sorry"


@pytest.mark.parametrize("text", NAMED)
def test_named_secrets_are_hidden(text):
    """What is named as a secret is blacked out, and its name stays."""
    assert "hunter22" not in redact(text)
    assert HIDDEN in redact(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_stays(text):
    """Text that only looks a little like a secret stays as it is."""
    assert redact(text) == text


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_length_does_not_matter():
    """A text as long as a book is looked through once, not once for each of its words."""
    text = "a-" * 100_000

    assert redact(f"{text}db_password=hunter22") == f"{text}db_password={HIDDEN}"


def test_type_message_stack():
    """An exception is its type, message and the frames it went through."""
    kind, message, stack = describe_exception(raised(KeyError("x")))

    assert (kind, message) == ("KeyError", "'x'")
    assert __file__ in stack
    assert "in raised" in stack


def test_type_of_a_package():
    """A type that is not built in is named with its module."""
    assert describe_exception(om.ConfigError("x"))[0] == "otel_mlperf.errors.ConfigError"


def test_without_text():
    """Message and stack are left out where that is wished; the type stays."""
    assert describe_exception(raised(KeyError("x")), with_text=False) == ["KeyError", "", ""]


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


def test_cyclic_cause(recording):
    """Exceptions that cause each other are recorded, once."""
    first, second = KeyError("1"), KeyError("2")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(KeyError), om.span("work"):
        raise first

    assert recording.one("work").error[:2] == ["KeyError", "'1'"]


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


def test_exception_text_setting(start):
    """With ``exception_text`` off, only the type is recorded."""
    recording = start(exception_text=False)
    with pytest.raises(KeyError), om.span("work"):
        raise KeyError("secret")

    assert recording.one("work").error == ["KeyError", "", ""]
