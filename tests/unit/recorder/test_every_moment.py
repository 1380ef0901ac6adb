"""The program may be interrupted at every moment inside the recorder, and continues unharmed.

Whatever is raised arrives, what was open is closed, and the same construct records again.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from interrupted_calls import interruptions, raise_at_next_look, second_interruptions

import otel_mlperf as om
from otel_mlperf import recorder
from otel_mlperf.journal.layout import Kind
from otel_mlperf.recorder.sections import allocation_profile
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from interrupted_calls import Interruption
    from recorder.conftest import Recording


class TooSlowError(Exception):
    """What a time limit of the program raises."""


def sections() -> None:
    with om.span("outer"), om.span("inner"):
        pass


def with_attributes() -> None:
    with om.span("load", rows=1) as section:
        section.set(file="a")


def failing() -> None:
    try:
        with om.span("fails"):
            raise ValueError("the program's")
    except ValueError:
        pass


_again = om.span("handle")


def handle() -> None:
    with _again, _again:
        pass


@om.span
def function() -> None:
    pass


@om.span
def generator() -> Iterator[int]:
    with om.span("in generator"):
        yield 1
    yield 2


def generators() -> None:
    for _ in generator():
        with om.span("consumer"):
            pass


@om.span
async def coroutine() -> None:
    pass


def coroutines() -> None:
    with pytest.raises(StopIteration):
        coroutine().send(None)


@om.span
async def async_generator() -> Any:
    yield 1
    yield 2


def async_generators() -> None:
    async def consume() -> None:
        async for _ in async_generator():
            pass

    with pytest.raises(StopIteration):
        consume().send(None)


def measured() -> None:
    with om.span("outer", resources=True), om.span("inner", resources=True, rows=1):
        pass


@om.span(resources=True)
def measured_generator() -> Iterator[int]:
    yield 1
    yield 2


def measured_generators() -> None:
    for _ in measured_generator():
        pass


def measured_outside() -> None:
    with om.step(), om.span("checkpoint", resources=True):
        pass


def measured_failing() -> None:
    try:
        with om.span("fails", resources=True):
            raise ValueError("the program's")
    except ValueError:
        pass


def profiled() -> None:
    with om.span("outer", profile="calls"), om.span("inner", profile="memory", rows=1):
        pass


@om.span(profile="calls")
async def profiled_coroutine() -> None:
    pass


def profiled_coroutines() -> None:
    with pytest.raises(StopIteration):
        profiled_coroutine().send(None)


def profiled_allocations() -> None:
    with om.step(), om.span("checkpoint", profile="memory"):
        pass


def profiled_failing() -> None:
    try:
        with om.span("fails", profile="calls"):
            raise ValueError("the program's")
    except ValueError:
        pass


def step() -> None:
    with om.step(), om.span("forward"):
        pass


@om.step
def step_function() -> None:
    pass


def failing_step() -> None:
    try:
        with om.step():
            raise ValueError("the program's")
    except ValueError:
        pass


def steps() -> None:
    for _ in om.steps(range(2)):
        with om.span("forward"):
            pass


def left_steps() -> None:
    for _ in om.steps(range(2)):
        break


def accumulated() -> None:
    for _ in om.steps(range(2), accumulate=2):
        pass


def async_steps() -> None:
    async def batches() -> Any:
        yield 1
        yield 2

    async def consume() -> None:
        async for _ in om.steps(batches()):
            pass

    with pytest.raises(StopIteration):
        consume().send(None)


def epochs() -> None:
    for _ in om.epochs(2):
        for _ in om.steps(range(1)):
            pass


def left_epochs() -> None:
    for _ in om.epochs(2):
        break


def epoch() -> None:
    with om.epoch(3):
        pass


def phase() -> None:
    with om.phase("validate"), om.step():
        pass


def phase_in_step() -> None:
    with om.step(), om.phase("validate"):
        pass


def outside() -> None:
    with om.step(), om.span("checkpoint"):
        pass


def added_up() -> None:
    with om.step(), om.span("tiny", aggregate=True):
        with om.span("tinier", aggregate=True):
            pass
        with om.span("plain"):
            pass


@om.span(aggregate=True)
def added_up_function() -> None:
    pass


@om.span(aggregate=True)
def added_up_generator() -> Iterator[int]:
    yield 1
    yield 2


def added_up_generators() -> None:
    for _ in added_up_generator():
        pass


def logs() -> None:
    om.log(loss=0.5, lr=1)


def counts() -> None:
    om.counter("c").add(1)
    om.counter("c").add(1, lang="de")
    om.gauge("g").set(2.0)
    om.histogram("h").record(3.0)


def marks() -> None:
    with om.span("loop"):
        om.mark_step()
        om.mark_step()


def requests() -> None:
    with om.request("predict", id=1, within_s=0.5), om.span("in request"):
        pass


def requests_in_step() -> None:
    with om.step(), om.request("inner"):
        pass


@pytest.fixture(autouse=True)
def only_tracemalloc(monkeypatch) -> None:
    """What memray needs at each begin would take minutes: its moments: ``test_profiled_calls``."""
    monkeypatch.setattr(allocation_profile, "has_memray", lambda: False)


CONSTRUCTS = [
    sections, with_attributes, failing, handle, function, generators, coroutines, async_generators,
    measured, measured_generators, measured_outside, measured_failing,
    profiled, profiled_coroutines, profiled_allocations, profiled_failing,
    step, step_function, failing_step, steps, left_steps, accumulated, async_steps, epochs,
    left_epochs, epoch, phase, phase_in_step, outside, added_up, added_up_function,
    added_up_generators, logs, counts, marks, requests, requests_in_step,
]  # fmt: skip


def state(recording: Recording) -> dict[str, Any]:
    """What a construct that is not under way leaves as it was."""
    of = recording.recorder
    context = CURRENT.get()
    of.stepping.abandoned.settle(None)  # as whatever follows does
    return {
        "context": context,
        "steps": len(of.parents.steps),
        "outer": list(of.parents.outer),
        "phase": of.registry.phase,
        "epoch": of.stepping.epoch,
        "open": recording.open(),
        "profilers": (of.stepping.flags, sys.getprofile(), tracemalloc.is_tracing()),
    }


def written(recording: Recording, use: Callable[[], object]) -> Counter[Any]:
    """Which rows a construct writes."""
    before = len(recording.rows())
    use()
    return Counter((row.kind, row.name, row.is_error) for row in recording.rows()[before:])


def ended_twice(recording: Recording) -> list[int]:
    ends = (row for row in recording.rows() if row.kind in (Kind.SECTION, Kind.CANCEL))
    return [span for span, count in Counter(row.span for row in ends).items() if count > 1]


def by_name(use: Callable[[], object]) -> str:
    return use.__name__  # type: ignore[attr-defined, no-any-return]


def assert_as_new(
    recording: Recording,
    use: Callable[[], object],
    runs: Iterable[tuple[Interruption, BaseException, BaseException | None]],
) -> None:
    """After each of the interrupted runs all is as before, and the construct records again."""
    use()  # names are registered, cells taken
    before, usual = state(recording), written(recording, use)
    wrong: list[str] = []
    gc.disable()
    try:
        for moment, raised, arrived in runs:
            found = state(recording)
            told = [f"{key}: {found[key]}" for key in before if found[key] != before[key]]
            if arrived is not raised:
                told.append(f"arrived: {arrived!r}")
            if found["context"] is not before["context"]:
                CURRENT.set(before["context"])
            again = written(recording, use)
            if again != usual:
                told.append(f"again: {again - usual} {usual - again}")
            if twice := ended_twice(recording):
                told.append(f"ended twice: {twice}")
            if told:
                wrong.append(f"{moment.where}: {'; '.join(told)}")
            recording.forget_rows()
    finally:
        gc.enable()
    assert not wrong


@pytest.fixture
def recording(start: Callable[..., Recording]) -> Recording:
    """An active run, in which each call is profiled that may be."""
    return start(profiled_calls=1 << 20)


@pytest.mark.fault("F95", "F96")
@pytest.mark.sampled(10)
@pytest.mark.parametrize("error", [KeyboardInterrupt, TooSlowError])
@pytest.mark.parametrize("use", CONSTRUCTS, ids=by_name)
def test_every_moment(recording, use, error):
    """Interrupted at each moment, caught, used again: as new, and nothing is swallowed."""
    assert_as_new(recording, use, interruptions(recorder, error, use))


@pytest.mark.fault("F95", "F96")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("use", [sections, failing, step, added_up_function], ids=by_name)
def test_every_second_moment(recording, use):
    """Interrupted again wherever the first interruption is being cleared up, it is cleared up."""
    assert_as_new(recording, use, second_interruptions(recorder, KeyboardInterrupt, use))


def test_interrupted_as_a_micro_step_has_opened(recording):
    """What comes as the opening of one returns finds it known: it is closed."""
    opening = recording.recorder.sections.enter.__code__
    error = KeyboardInterrupt()

    def interrupt(frame, event, _):
        if event == "return" and frame.f_code is opening:
            sys.setprofile(None)
            raise_at_next_look(error)

    accumulated()
    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            accumulated()
    finally:
        sys.setprofile(None)

    assert recording.open() == ["run"]


# What a generator raises while it is dropped, the interpreter prints and drops.
DROPPED_BY_PYTHON = {generators, async_generators, measured_generators, added_up_generators}


@pytest.mark.fault("F95", "F96")
@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "use", [use for use in CONSTRUCTS if use not in DROPPED_BY_PYTHON], ids=by_name
)
def test_two_signals_at_once(recording, use):
    """Of two signals the second is handled right after the first: all is as after one."""
    assert_as_new(recording, use, second_interruptions(recorder, KeyboardInterrupt, use, most=1))
