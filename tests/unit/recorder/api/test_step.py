"""``step`` and ``mark_step`` count where there is no loop to wrap."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import sys
import threading

import pytest

import otel_mlperf as om
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.recorder.sections.parents import OpenStep


def test_block(recording):
    """A block is a step with the samples and tokens that were given."""
    with om.step(samples=32, tokens=4096) as section:
        section.set(note="x")
        with om.span("forward"):
            pass

    row = recording.one("train.step")
    assert (row.payload["n"], row.payload["t"], row.attributes["note"]) == (32, 4096, "x")
    assert recording.one("forward").root == row.span
    assert recording.numbers() == [0]


def test_what_fails_now_and_then(recording):
    """What is done at the begin of some steps may fail: the step begins and ends all the same."""
    recording.may_fail = True
    looks = []
    recording.recorder.stepping.now_and_then[:0] = [lambda now: 1 / 0, looks.append]
    for _ in range(3):
        recording.recorder.stepping.due_ns = 0
        with om.step():
            pass

    assert recording.numbers() == [0, 1, 2]
    assert len(looks) == 3


def test_number(recording):
    """A number that is given counts, and later steps count on from it."""
    with om.step(7):
        pass
    with om.step():
        pass
    with om.step(number := 3):
        assert recording.run.step == number

    assert recording.numbers() == [7, 8, 3]
    assert [row.root for row in recording.begins("train.step")] == [0, 1, 2]


def test_decorators(recording):
    """Bare or with arguments, each call of a decorated function is a step."""

    @om.step
    def bare(x):
        return x + 1

    @om.step(samples=8)
    def given():
        return 2

    @om.step
    async def waiting():
        await asyncio.sleep(0)
        return 3

    assert [bare(0), given(), asyncio.run(waiting())] == [1, 2, 3]
    assert inspect.iscoroutinefunction(waiting)
    assert recording.numbers() == [0, 1, 2]
    assert recording.sections("train.step")[1].payload["n"] == 8


def test_exception(recording):
    """An exception marks the step and goes on."""
    with pytest.raises(KeyError), om.step():
        raise KeyError("x")

    assert recording.one("train.step").error[:2] == ["KeyError", "'x'"]


def test_inside_steps(recording, said):
    """A decorated step inside ``steps`` is a plain section of it; that is said once."""

    @om.step
    def train(x):
        with om.span("forward"):
            return x

    for x in om.steps([1, 2]):
        train(x)

    outer, inner = recording.sections("train.step"), recording.sections("train")
    assert len(outer) == len(inner) == 2
    assert [row.parent for row in inner] == [row.span for row in outer]
    assert [row.parent for row in recording.sections("forward")] == [row.span for row in inner]
    assert len(said()) == 1


def test_block_inside_steps(recording):
    """A step block inside ``steps`` is a section named ``step``."""
    for _ in om.steps([1]):
        with om.step(samples=3):
            pass

    assert recording.one("step").parent == recording.one("train.step").span


def test_dropped_unentered(recording, said):
    """A ``step()`` that nobody enters warns once."""
    for _ in range(3):
        om.step()
    gc.collect()

    assert len([text for text in said() if "never entered" in text]) == 1
    assert recording.sections() == []


def test_mark_step(recording):
    """Each call after the first ends a step and opens the next; the last one is taken back."""
    with om.span("training"):
        for _ in range(4):
            om.mark_step()
            with om.span("forward"):
                pass

    rows = recording.sections("train.step")
    assert recording.numbers() == [0, 1, 2]
    assert [a.end <= b.start for a, b in itertools.pairwise(rows)] == [True, True]
    assert [row.root for row in recording.sections("forward")[:3]] == [row.span for row in rows]
    (cancelled,) = recording.rows(Kind.CANCEL)
    assert recording.sections("forward")[3].root == cancelled.span
    assert recording.open() == ["run"]


def test_mark_step_at_the_end_of_the_run(recording):
    """The step that is open when the run ends is taken back."""
    for number in (5, None, None):
        om.mark_step(number)
    om.stop()

    assert recording.numbers() == [5, 6]
    assert len(recording.rows(Kind.CANCEL)) == 1


def test_mark_step_inside_a_section(recording):
    """Called inside a section of the step, it still ends that step; the section goes on."""
    om.mark_step()
    with om.span("optimizer"):
        om.mark_step()
    with om.span("forward"):
        pass
    om.mark_step()
    with om.span("later"):
        pass

    first, second = recording.sections("train.step")
    assert recording.one("optimizer").root == first.span
    assert recording.one("forward").root == second.span
    assert recording.one("later").root not in (first.span, second.span)


def test_mark_step_inside_steps(recording, said):
    """Inside ``steps`` of the same phase it does nothing; that is said once."""
    for _ in om.steps([1, 2]):
        om.mark_step()

    assert recording.numbers() == [0, 1]
    assert len(said()) == 1


def test_step_of_a_thread_with_an_empty_context(recording):
    """A step that nothing is open around belongs to the run."""

    def work():
        with om.step():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert [row.parent for row in recording.begins("train.step")] == [recording.span]


def test_many_marks_inside_an_open_section(recording):
    """A section that stays open while steps are marked does not keep every one of them alive."""
    before = _steps_alive()
    om.mark_step()
    section = om.span("open")
    section.__enter__()
    for _ in range(50):
        om.mark_step()

    alive = _steps_alive() - before
    section.__exit__(None, None, None)
    assert alive <= 3


def test_steps_leave_no_garbage(recording):
    """A step is freed when it ends, also where the garbage collector is switched off."""
    before = _steps_alive()
    gc.disable()
    try:
        for _ in range(50):
            with om.step(), om.span("forward"):
                pass
        alive = sum(type(thing) is OpenStep for thing in gc.get_objects())
    finally:
        gc.enable()

    assert alive == before


def _steps_alive():
    gc.collect()
    return sum(type(thing) is OpenStep for thing in gc.get_objects())


def test_number_is_asked_while_other_threads_open_steps(recording):
    """``Run.step`` and the end of what encloses steps bear steps that come and go meanwhile."""
    done = threading.Event()

    def work():
        while not done.is_set():
            with om.step():
                pass

    threads = [threading.Thread(target=work) for _ in range(2)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(3000):
            assert recording.run.step >= 0
            with om.step(), om.phase("validate"), om.step():
                pass
    finally:
        sys.setswitchinterval(before)
        done.set()
        for thread in threads:
            thread.join()

    assert recording.journal.words[Word.INTERNAL_ERRORS] == 0
