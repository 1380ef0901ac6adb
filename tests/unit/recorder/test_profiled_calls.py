"""``span(profile=)`` profiles the chosen calls, and leaves everything else alone."""

from __future__ import annotations

import asyncio
import cProfile
import gc
import os
import random
import sys
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import memray
import pytest
from interrupted_calls import interruptions
from profilers_on import HAS_MONITORING, is_nothing_on, is_profiled

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import Flag
from otel_mlperf.recorder.sections import allocation_profile
from otel_mlperf.run_files.hot_file import ProfiledCall, read_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recorder.conftest import Recording


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Callbacks of the garbage collector that other libraries have put there are calls, too."""
    gc.disable()
    yield
    gc.enable()


def inner(n: int) -> int:
    return n + 1


def work(n: int) -> int:
    return sum(inner(i) for i in range(n))


def calls(recording: Recording) -> list[ProfiledCall]:
    """What was written of the process's own calls."""
    return list(read_calls(Path(recording.run.path)))


@pytest.fixture(params=["memray", "tracemalloc"])
def allocations(request, monkeypatch) -> str:
    """Who follows allocations: the package of the extra, or the standard library without it."""
    monkeypatch.setattr(allocation_profile, "has_memray", lambda: request.param == "memray")
    return request.param


def test_functions_of_a_call(recording):
    """Each function that a call made is there, with how often, how long, and where it stands."""
    with om.span("forward", profile="calls"):
        work(10)
    (call,) = calls(recording)
    found = {spot.name: spot for spot in call.spots}
    assert (call.section, call.category, call.kind) == ("forward", "forward", "calls")
    assert (found["inner"].calls, found["work"].calls) == (10, 1)
    assert (found["inner"].file, found["inner"].line) == (__file__, inner.__code__.co_firstlineno)
    assert found["inner"].own_ns <= found["work"].total_ns <= call.duration_ns
    assert "built-in method builtins.sum" in found
    assert is_nothing_on()


def test_nothing_of_ours(recording, monkeypatch):
    """Neither our own functions are in it, nor what they call, whatever is recorded inside."""
    compiler = pytest.importorskip("torch.compiler")
    monkeypatch.setattr("otel_mlperf.recorder.api.span._is_compiling", compiler.is_dynamo_compiling)
    with om.span("forward", profile="calls"), om.span("inside", rows=1):
        om.log(loss=1.0)
        inner(1)
    (call,) = calls(recording)
    assert [spot.name for spot in call.spots] == ["inner"]


def test_allocations_of_a_call(recording, allocations):
    """Each line is there that allocated what its call kept, by its bytes, and the most at once."""
    with om.span("load", profile="memory"):
        kept = [bytearray(100_000) for _ in range(3)]
        del [bytearray(1_000_000)][:]
    (call,) = calls(recording)
    assert len(kept) == 3
    line = test_allocations_of_a_call.__code__.co_firstlineno + 3
    assert (call.spots[0].file, call.spots[0].line) == (__file__, line)
    assert 300_000 <= call.spots[0].kept_bytes < 310_000
    assert call.kept_bytes < 400_000
    assert call.peak_bytes >= 1_300_000
    assert is_nothing_on()


def test_tensors_of_a_call(recording):
    """A tensor that a call keeps is there with its line; of the program's files none is left."""
    torch = pytest.importorskip("torch")
    with om.span("forward", profile="memory"):
        kept = torch.ones(1_000_000)
        torch.ones(2_000_000)
    (call,) = calls(recording)
    line = test_tensors_of_a_call.__code__.co_firstlineno + 4
    assert (call.spots[0].file, call.spots[0].line) == (__file__, line)
    assert kept.nbytes <= call.spots[0].kept_bytes < kept.nbytes + 10_000
    assert call.peak_bytes >= 3 * kept.nbytes
    assert is_nothing_on()


def test_no_file_is_left(recording, monkeypatch, tmp_path):
    """What memray writes is gone when the call is over, and where another one is on, at once."""
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with om.span("forward", profile="memory"):
        assert list(folder.iterdir())
    assert not list(folder.iterdir())
    with memray.Tracker(folder / "theirs"):
        with om.span("forward", profile="memory"):
            pass
        assert [file.name for file in folder.iterdir()] == ["theirs"]
    assert [call.left_out for call in calls(recording)] == ["", "another profiler was active"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("nth", range(16))
def test_interrupted_while_allocations_are_followed(start, monkeypatch, tmp_path, nth):
    """Whatever comes between, memray's file is gone and nothing left on: the last is followed."""
    recording = start(profiled_calls=1000)
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))

    def use() -> None:
        with om.span("forward", profile="memory"):
            pass

    use()
    here: Any = SimpleNamespace(__file__=f"{allocation_profile.__file__}/here")
    moments = 0
    sixteenth = slice(nth, None, 16)
    for interruption, raised, arrived in interruptions(here, KeyboardInterrupt, use, sixteenth):
        assert arrived is raised, interruption.where
        assert not list(folder.iterdir()), interruption.where
        moments += 1
    use()
    assert (calls(recording)[-1].left_out, moments > 2) == ("", True)


def test_first_calls_only(start):
    """So many calls are profiled as the setting says, in each phase; those after it are plain."""
    recording = start(profiled_calls=2)
    for _ in range(5):
        with om.span("forward", profile="calls"):
            assert is_profiled() == (len(calls(recording)) < 2)
    with om.phase("validate"), om.span("forward", profile="calls"):
        pass
    assert [call.phase for call in calls(recording)] == ["train", "train", "validate"]


def test_profiled_span_says_so(recording):
    """A profiled call's span tells by what and its number; the calls after it tell nothing."""
    for _ in range(4):
        with om.span("forward", profile="memory"):
            pass
    told = [
        (row.attributes.get(names.SECTION_PROFILER), row.attributes.get(names.SECTION_PROFILED))
        for row in recording.sections("forward")
    ]
    assert told == [("memory", 1), ("memory", 2), ("memory", 3), (None, None)]


def test_steps_are_marked(start):
    """Steps around and inside a profiled call count as slowed down by a profiler, others not."""
    recording = start(profiled_calls=1)
    for _ in om.steps(range(3)):
        with om.span("forward", profile="calls"):
            pass
    with om.span("all of them", profile="calls"):
        for _ in om.steps(range(2)):
            pass
    with om.step():
        pass
    steps = recording.sections("train.step")
    slowed = [bool(row.flags & Flag.PROFILED) for row in steps]
    assert slowed == [True, False, False, True, True, False]


@om.span("decorated", profile="calls")
def decorated(n: int) -> int:
    return decorated(n - 1) if n else work(2)


def test_decorated_function(recording):
    """A decorated function is profiled, the calls of itself with it and not as calls of theirs."""
    assert decorated(3) == 3
    decorated(0)
    first, second = calls(recording)
    assert {spot.name: spot.calls for spot in first.spots}["decorated"] == 4
    assert (second.passed_over, second.section) == (0, "decorated")


def test_coroutine(recording):
    """One that never waits is profiled; of one that gave way to others nothing is told."""

    @om.span("quick", profile="calls")
    async def quick() -> int:
        return inner(1)

    @om.span("slow", profile="calls")
    async def slow() -> int:
        await asyncio.sleep(0)
        return 1

    async def both() -> None:
        await quick()
        await slow()

    asyncio.run(both())
    first, second = calls(recording)
    assert "inner" in {spot.name for spot in first.spots}
    assert (second.section, second.spots) == ("slow", [])
    assert "awaited" in second.left_out
    assert is_nothing_on()


def test_generator(recording, said):
    """A generator, whose consumer runs in between, is recorded without, which is said."""

    @om.span("batches", profile="calls")
    def batches() -> Iterator[int]:
        yield 1
        assert not is_profiled()

    assert list(batches()) == [1]
    assert recording.one("batches")
    assert not calls(recording)
    assert "generator" in said()[0]


def test_another_profiler(recording, said, monkeypatch):
    """Where the program's own profiler is on, it stays on and sees all; that is told and said."""
    profiler = cProfile.Profile()
    profiler.enable()
    with om.span("forward", profile="calls"):
        inner(1)
    profiler.disable()
    monkeypatch.setattr(allocation_profile, "has_memray", lambda: False)
    tracemalloc.start()
    with om.span("load", profile="memory"):
        pass
    assert tracemalloc.is_tracing()
    tracemalloc.stop()
    assert any(getattr(entry.code, "co_name", "") == "inner" for entry in profiler.getstats())
    assert [call.left_out for call in calls(recording)] == ["another profiler was active"] * 2
    assert len(said()) == 1
    assert names.SECTION_PROFILER not in recording.one("forward").attributes


def test_one_at_a_time(recording):
    """A section inside a profiled one has its turn in later calls, and tells what it missed."""
    for _ in range(4):
        with om.span("outer", profile="calls"), om.span("inside", profile="memory"):
            pass
    found = [(call.section, call.passed_over) for call in calls(recording)]
    assert found == [("outer", 0), ("outer", 0), ("outer", 0), ("inside", 3)]
    assert is_nothing_on()


def test_replaced_inside(recording):
    """A profiler that the program puts in its place stays on; nothing is told of the call.

    From Python 3.12 on it stands beside ours, which sees all the same.
    """

    def theirs(*_: object) -> None:
        pass

    with om.span("forward", profile="calls"):
        sys.setprofile(theirs)
    assert sys.getprofile() is theirs
    sys.setprofile(None)
    left_out = "" if HAS_MONITORING else "another profiler replaced it during the call"
    assert [call.left_out for call in calls(recording)] == [left_out]
    assert is_nothing_on()


def test_exception_and_value(recording):
    """What a profiled call raises and returns is its own, and so is the random stream."""
    random.seed(1)
    plain = random.random()
    random.seed(1)

    @om.span("fails", profile="calls")
    def failing() -> None:
        assert random.random() == plain
        raise ValueError("the program's")

    with pytest.raises(ValueError, match="the program's"):
        failing()
    assert recording.one("fails").error[0] == "ValueError"
    assert calls(recording)[0].section == "fails"
    assert is_nothing_on()


def test_allocations_until_another_thread(recording, allocations):
    """What is followed in a section that another thread ends is over with it."""
    section = om.span("handed on", profile="memory")
    thread = threading.Thread(target=section.__enter__)
    thread.start()
    thread.join()
    section.__exit__(None, None, None)
    assert [call.left_out for call in calls(recording)] == ["the call ended in another thread"]
    assert is_nothing_on()
    with om.span("next", profile="memory"):
        pass
    assert calls(recording)[1].left_out == ""


def test_ended_in_another_thread(recording):
    """A profiler ends with its section, also where another thread ends that."""
    opened, left, done = threading.Event(), threading.Event(), []
    section = om.span("handed on", profile="calls")

    def opens() -> None:
        section.__enter__()
        opened.set()
        left.wait()
        inner(1)  # at the next call
        done.append(is_profiled())

    thread = threading.Thread(target=opens)
    thread.start()
    opened.wait()
    section.__exit__(None, None, None)
    left.set()
    thread.join()
    assert done == [False]
    assert [call.left_out for call in calls(recording)] == ["the call ended in another thread"]


def test_stopped_inside(recording):
    """Where the run ends inside a profiled call, the profiler does, too."""
    with om.span("forward", profile="calls"):
        om.stop()
        assert is_nothing_on()
    assert not calls(recording)


@pytest.mark.parametrize("kind", ["calls", "memory"])
def test_forked_inside(recording, kind, allocations):
    """A child that is forked in a profiled call has no profiler on, and writes nothing of it."""
    with om.span("forward", profile=kind):
        kept = [bytearray(1000)]
        child = os.fork()
        if not child:
            os._exit(0 if is_nothing_on() else 1)
        _, status = os.waitpid(child, 0)
        assert not is_nothing_on() or allocations == "memray"  # which cannot be asked
    assert status == 0
    (call,) = calls(recording)
    assert (call.left_out, bool(call.spots)) == ("", bool(kept))


def test_unknown_kind(recording, said):
    """A word that is no kind of profile is said once; the span is recorded without."""
    for _ in range(2):
        with om.span("forward", profile="call"):
            assert is_nothing_on()
    assert len(recording.sections("forward")) == 2
    assert len(said()) == 1
    assert "expected one of calls, lines, memory" in said()[0]


def test_folder_refuses(recording, said):
    """Where the run folder cannot be written it is said, and the span is recorded."""
    (Path(recording.run.path) / "hot").write_text("in the way")
    with om.span("forward", profile="calls"):
        pass
    assert recording.one("forward")
    assert "cannot be written" in said()[0]
