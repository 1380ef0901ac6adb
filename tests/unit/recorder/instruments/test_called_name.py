"""The function that a line of a program calls is found, also if it is written in C."""

from __future__ import annotations

import dis

import pytest

from otel_mlperf.recorder.instruments.stack_samples import ITERATION, WITH, called_name

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")


def calls_of(text):
    """What each call of a line is found to be, in their order."""
    code = compile(text, "program.py", "exec")
    found = [one for one in dis.get_instructions(code) if one.opname in _CALLS]
    return [called_name(code, one.offset) for one in found]


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("loss.item()", ["item"]),
        ("print(loss.item(), 3)", ["item", "print"]),
        ("x.detach().cpu().numpy().tolist()", ["detach", "cpu", "numpy", "tolist"]),
        ("self.log.info('a', a.b)", ["info"]),
        ("print(a, file=b)", ["print"]),
        ("calls[0](a)", ["calls"]),
    ],
)
def test_a_call_has_the_name_that_its_line_has_for_it(text, called):
    """Arguments that are calls themselves are told apart."""
    assert calls_of(text) == [(1, name) for name in called]


def test_the_line_is_that_of_the_call():
    """A function has many."""
    assert calls_of("a = 1\n\nb(a)\n") == [(3, "b")]


def test_a_loop_that_asks_for_the_next_one_is_no_call_but_told():
    """There a program waits for its data."""
    code = compile("for a in b:\n    pass\n", "program.py", "exec")
    (at,) = (one.offset for one in dis.get_instructions(code) if one.opname == "FOR_ITER")

    assert called_name(code, at) == (1, ITERATION)


def test_what_calls_nothing_works_itself():
    """Arithmetic of numbers, say."""
    code = compile("a = b + c\n", "program.py", "exec")
    (at,) = (one.offset for one in dis.get_instructions(code) if one.opname == "BINARY_OP")

    assert called_name(code, at) == (1, "")


@pytest.mark.skipif("BEFORE_WITH" not in dis.opmap, reason="a block is entered by a call there")
def test_a_block_that_is_entered_is_no_call_but_told():
    """There a program waits for a lock, which has no frame."""
    code = compile("with a:\n    pass\n", "program.py", "exec")
    (at,) = (one.offset for one in dis.get_instructions(code) if one.opname == "BEFORE_WITH")

    assert called_name(code, at) == (1, WITH)
