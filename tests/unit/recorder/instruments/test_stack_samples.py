"""The sampled line of a thread is counted, with what it calls."""

from __future__ import annotations

import sysconfig
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.recorder.instruments.stack_samples import THREAD_NAME, StackSamples, package_of

_STDLIB = sysconfig.get_paths()["stdlib"]


class Counted(Counter):
    """Cells as far as samples use them."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def add(self, name, unit, value, labels=()):
        assert unit == names.STACK_SAMPLES.unit
        self[labels] += value
        self.names[name] += value


@pytest.fixture
def waiting():
    """A thread that has come to its wait, in a line of this file."""
    has_come, may_go = threading.Event(), threading.Lock()
    may_go.acquire()

    def hold_on():
        has_come.set()
        may_go.acquire()

    thread = threading.Thread(target=hold_on)
    thread.start()
    has_come.wait()
    yield thread
    may_go.release()
    thread.join()


def test_where_a_thread_is_is_counted_with_what_it_calls(waiting):
    """The innermost line of the program, by file, function and line."""
    cells = Counted()
    samples = StackSamples(cells, bool, bool, waiting.ident)
    samples.look(names.STACK_SAMPLES)
    samples.look(names.STACK_SAMPLES)

    assert sum(cells.values()) == 2
    told = dict(min(cells))
    assert told[names.CODE_FILE] == Path(__file__).name
    assert told[names.CODE_FUNCTION] == "waiting.<locals>.hold_on"
    assert told[names.STACK_WITHIN] == ""


def test_a_thread_that_is_gone_is_counted_without_a_place():
    """The sum is that of all looks."""
    cells = Counted()
    StackSamples(cells, bool, bool, -1).look(names.STACK_SAMPLES)

    assert cells == {(): 1}


def test_looks_between_steps_are_counted_apart(waiting):
    """From the first step on, and not in a validation."""
    moments = iter([(False, True), (True, True), (False, True), (False, False), (False, True)])
    cells, looked = Counted(), threading.Event()
    now = [(False, True)]

    def is_in_step():
        now[0] = next(moments, None) or (looked.set(), False)
        return now[0][0] is True

    samples = StackSamples(cells, is_in_step, lambda: now[0][1], waiting.ident)
    samples.start()
    assert looked.wait(60)
    samples.end()

    assert cells.names == {names.STACK_SAMPLES.name: 1, names.STACK_SAMPLES_BETWEEN.name: 2}


def test_looks_behind_a_validation_are_between_steps(waiting):
    """Its end is known afterwards: what was seen before it belongs to it."""
    cells, looked = Counted(), threading.Event()
    held = []

    def validated_ns():
        if len(held) < 4:
            held.append(time.monotonic_ns())
            return None
        return held[1]

    def is_in_step():
        if cells.total():
            looked.set()
        return len(held) >= 4

    samples = StackSamples(
        cells, is_in_step, lambda: False, waiting.ident, validated_ns=validated_ns
    )
    samples.start()
    assert looked.wait(60)
    samples.end()

    assert 2 <= cells.names[names.STACK_SAMPLES_BETWEEN.name] <= 3


def test_looks_before_the_first_step_are_those_of_the_set_up(waiting):
    """Where they begin with the run; in a step, and behind it, they are not."""
    moments = iter([False, False, True, False])
    cells, looked = Counted(), threading.Event()

    def is_in_step():
        return next(moments, None) or (looked.set() if cells.total() >= 4 else False)

    samples = StackSamples(cells, is_in_step, lambda: True, waiting.ident, is_from_start=True)
    samples.start()
    assert looked.wait(60)
    samples.end()

    assert cells.names[names.STACK_SAMPLES_SET_UP.name] == 2
    assert cells.names[names.STACK_SAMPLES.name] == 1


@pytest.mark.parametrize(
    ("path", "library"),
    [
        ("/home/me/train.py", ""),
        ("/home/me/torch/model.py", ""),
        ("/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", "torch"),
        ("/usr/lib/python3/dist-packages/numpy/core/numeric.py", "numpy"),
        ("/venv/lib/python3.11/site-packages/six.py", "six"),
        (f"{_STDLIB}/logging/__init__.py", "logging"),
        (f"{_STDLIB}/json.py", "json"),
        ("<frozen importlib._bootstrap>", "python"),
        ("<stdin>", ""),
    ],
)
def test_files_of_libraries_are_told_from_those_of_the_program(path, library):
    """By the folder into which they were installed."""
    assert package_of(path) == library


def lookers():
    """Threads that look at stacks; those of an earlier run may still be about to end."""
    return {one for one in threading.enumerate() if one.name == THREAD_NAME}


def test_it_is_looked_for_as_long_as_the_run_goes_on(start):
    """The thread ends with it."""
    before = lookers()
    start(readings="detailed")
    (thread,) = lookers() - before
    om.stop()

    thread.join()


@pytest.mark.parametrize(
    "settings",
    [
        {"readings": "basic"},
        {"readings": "detailed", "disabled_readings": "stacks"},
        {"readings": "none"},
    ],
)
def test_not_asked_for(start, settings):
    """There is no such thread: the training process has none of ours."""
    before = lookers()
    start(**settings)

    assert lookers() <= before
