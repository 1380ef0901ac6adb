"""A program at the end of its stack gets its own exceptions, and all of it is recorded."""

from __future__ import annotations

import gc
import sys
from itertools import count

import pytest

import otel_mlperf as om
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.sections.section_context import CURRENT

BODIES = {}
"""How many bodies a call has; one, where it is not said."""
FRAMES = 60
"""More than any of ours needs."""


class Own(ValueError):
    """What the program raises."""


RAISED = Own("made before: to make one takes a frame")


def plain(ran):
    with om.span("work"):
        ran.append(1)
        raise RAISED


def with_attributes(ran):
    with om.span("work", rows=7):
        ran.append(1)
        raise RAISED


def inside_another(ran):
    with om.span("work"):
        ran.append(1)
        with om.span("work"):
            ran.append(1)
            raise RAISED


BODIES[inside_another] = 2


def decorated(ran):
    work(ran)


@om.span("work")
def work(ran):
    ran.append(1)
    raise RAISED


def added_up(ran):
    with om.span("added up", aggregate=True), om.span("work"):
        ran.append(1)
        raise RAISED


def stepping(ran):
    with om.step():
        ran.append(1)
        raise RAISED


def in_a_phase(ran):
    with om.phase("validate"), om.span("work"):
        ran.append(1)
        raise RAISED


def down(frames, call, ran):
    return down(frames - 1, call, ran) if frames else call(ran)


def frames_here():
    return next(n for n in count(1) if not has_frame(n))


def has_frame(n):
    try:
        sys._getframe(n)
    except ValueError:
        return False
    return True


@pytest.fixture(autouse=True)
def _no_garbage():
    """A collection calls hooks of others, which would fail there and be told of."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.fault("F56")
@pytest.mark.parametrize(
    "call",
    [plain, with_attributes, inside_another, decorated, added_up, stepping, in_a_phase],
    ids=lambda call: call.__name__,
)
def test_at_the_end_of_the_stack(recording, call):
    """What a body raises comes out of it; what was entered has ended, once, and nothing is open."""
    recording.may_fail = True  # what could not be entered is counted
    ran, entered, wrong = [], 0, []
    with pytest.raises(Own):
        call(ran)  # names and modules are known from here on
    with om.span("around"):
        current, phase = CURRENT.get(), recording.recorder.registry.phase
        limit = sys.getrecursionlimit()
        for frames in range(FRAMES):
            entered += len(ran)
            ran.clear()
            sys.setrecursionlimit(frames_here() + FRAMES)
            try:
                down(frames, call, ran)
            except (Own, RecursionError) as error:
                came = error
            finally:
                sys.setrecursionlimit(limit)
            RAISED.__traceback__ = RAISED.__context__ = None
            if len(ran) == BODIES.get(call, 1) and came is not RAISED:
                wrong.append((frames, came))
        with om.step(), om.span("after"):
            pass
        entered += len(ran) + (call is stepping)
        is_back = recording.recorder.registry.phase == phase
    name = "train.step" if call is stepping else "work"
    ended = len(recording.sections(name))

    assert (wrong, is_back) == ([], True)
    assert entered - recording.word(Word.INTERNAL_ERRORS) <= ended <= entered
    assert ended > FRAMES // 2
    assert recording.one("after").parent == recording.sections("train.step")[-1].span
    assert recording.open() == ["run"]
    assert current is not CURRENT.get()
