"""``span(profile="lines")`` observes the lines of a function, and leaves the rest alone."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from profilers_on import HAS_MONITORING, is_nothing_on

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import Flag
from otel_mlperf.run_files.hot_file import ProfiledCall, read_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recorder.conftest import Recording

pytest.importorskip("line_profiler", reason="the extra 'lines' is not installed")

WITHOUT_PACKAGE = """
import sys
sys.modules["line_profiler"] = None
import otel_mlperf as om
with om.start("bare", dir=sys.argv[1], agent="none", console=False):
    for _ in range(2):
        @om.span("work", profile="lines")
        def work():
            return sys.gettrace()
        assert work() is None
"""


def calls(recording: Recording) -> list[ProfiledCall]:
    """What was written of the process's own calls."""
    return list(read_calls(Path(recording.run.path)))


@om.span("sum up", profile="lines")
def sum_up(upto: int, *, start: int = 0) -> int:
    total = start
    for n in range(upto):
        total += n
    return total


def first_line(function: object) -> int:
    """Of what a decorator stands above."""
    return inspect.unwrap(function).__code__.co_firstlineno  # type: ignore[attr-defined]


def test_lines_of_a_function(recording):
    """Each line that ran is there with how often, its time and where it stands."""
    assert sum_up(10, start=5) == 50
    (call,) = calls(recording)
    found = {spot.line - first_line(sum_up): spot for spot in call.spots}
    assert (call.section, call.kind, call.left_out) == ("sum up", "lines", "")
    assert {line: spot.calls for line, spot in found.items()} == {2: 1, 3: 11, 4: 10, 5: 1}
    assert {(spot.name, spot.file) for spot in call.spots} == {("sum_up", __file__)}
    assert 0 < sum(spot.own_ns for spot in call.spots) <= call.duration_ns
    assert is_nothing_on()


def test_the_function_is_left_as_it_is(recording):
    """Its code is what it was, while its call is profiled and afterwards."""
    codes = []

    def work() -> None:
        codes.append(work.__code__)

    before = work.__code__
    om.span("work", profile="lines")(work)()
    assert len(calls(recording)) == 1
    assert codes == [before]
    assert work.__code__ is before


def test_closures_defaults_and_methods(recording):
    """A copy has what the function has: what is around it, defaults, self."""
    around = [1]

    class Model:
        @om.span("scaled", profile="lines")
        def scaled(self, by: int = 3, *, plus: int = 4) -> int:
            around.append(by)
            return len(around) * by + plus

        @staticmethod
        @om.span("fixed", profile="lines")
        def fixed() -> int:
            return len(around)

    assert (Model().scaled(), Model.fixed()) == (10, 2)
    assert [len(call.spots) for call in calls(recording)] == [2, 1]


def test_calls_of_itself(recording):
    """Lines of the calls that a function makes of itself are among its own."""

    @om.span("down", profile="lines")
    def down(n: int) -> int:
        return down(n - 1) if n else 0

    assert down(3) == 0
    (call,) = calls(recording)
    assert [spot.calls for spot in call.spots] == [4]


def test_first_calls_only_and_marked(start):
    """So many calls as the setting says; their spans say by what, and their steps are marked."""
    recording = start(profiled_calls=1)
    for _ in om.steps(range(2)):
        sum_up(1)
    assert len(calls(recording)) == 1
    told = [row.attributes.get(names.SECTION_PROFILER) for row in recording.sections("sum up")]
    steps = [bool(row.flags & Flag.PROFILED) for row in recording.sections("train.step")]
    assert (told, steps) == (["lines", None], [True, False])


def test_a_block_is_recorded_without(recording, said):
    """Lines are those of a function: of a block it is said once, and its span is recorded."""
    for _ in range(2):
        with om.span("forward", profile="lines"):
            assert is_nothing_on()
    assert len(recording.sections("forward")) == 2
    assert calls(recording) == []
    assert len(said()) == 1
    assert "supports only functions" in said()[0]


def test_what_has_no_lines_is_recorded_without(recording, said):
    """A coroutine, a generator and a function in C, each said."""

    @om.span("batches", profile="lines")
    def batches() -> Iterator[int]:
        yield 1

    @om.span("waits", profile="lines")
    async def waits() -> None:
        pass

    with pytest.raises(StopIteration):
        waits().send(None)
    assert list(batches()) == [1]
    assert om.span("longest", profile="lines")(max)(1, 2) == 2
    assert [recording.one(name).name for name in ("batches", "waits", "longest")]
    assert calls(recording) == []
    assert "generator" in said()[0]
    assert ["written in Python" in line for line in said()[1:]] == [True]


def test_a_debugger_stays_on(recording, said):
    """Who follows lines already goes on; that is told and said."""

    def theirs(*_: object) -> None:
        pass

    sys.settrace(theirs)
    try:
        assert sum_up(2) == 1
        assert sys.gettrace() is theirs
    finally:
        sys.settrace(None)
    assert [call.left_out for call in calls(recording)] == [
        "a debugger or another tracer was active"
    ]
    assert names.SECTION_PROFILER not in recording.one("sum up").attributes
    assert len(said()) == 1


@pytest.mark.skipif(HAS_MONITORING, reason="tracers stand beside each other there")
def test_a_debugger_begun_inside_stays_on(recording):
    """It is on afterwards, and nothing is told of the call."""

    def theirs(*_: object) -> None:
        pass

    @om.span("stops here", profile="lines")
    def stops_here() -> None:
        sys.settrace(theirs)

    try:
        stops_here()
        assert sys.gettrace() is theirs
    finally:
        sys.settrace(None)
    assert [call.left_out for call in calls(recording)] == [
        "another profiler replaced it during the call"
    ]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_whatever_ends_the_call(recording, error):
    """An exception is the program's own, and leaves nothing on; the lines up to it are there."""

    @om.span("fails", profile="lines")
    def fails() -> None:
        raise error("the program's")

    with pytest.raises(error, match="the program's"):
        fails()
    (call,) = calls(recording)
    assert [spot.line for spot in call.spots] == [first_line(fails) + 2]
    assert is_nothing_on()


def test_stopped_inside(recording):
    """Where the run ends inside a profiled call, the profiler does, too."""

    @om.span("stops", profile="lines")
    def stops() -> None:
        om.stop()
        assert is_nothing_on()

    stops()
    assert is_nothing_on()
    assert calls(recording) == []


def test_stopped_by_another_thread(recording):
    """No thread ends another's profiler: that one does it at the end of the call."""

    @om.span("goes on", profile="lines")
    def goes_on() -> None:
        thread = threading.Thread(target=om.stop)
        thread.start()
        thread.join()

    goes_on()
    assert is_nothing_on()
    assert calls(recording) == []


def test_forked_inside(recording):
    """A child that is forked in a profiled call has no profiler on, and writes nothing of it."""

    @om.span("forks", profile="lines")
    def forks() -> int:
        child = os.fork()
        if not child:
            os._exit(0 if is_nothing_on() else 1)
        return os.waitpid(child, 0)[1]

    assert forks() == 0
    assert len(calls(recording)) == 1


def test_other_threads_are_not_seen(recording):
    """A function that two threads are in is profiled in the one whose call it is."""
    others = []

    @om.span("shared", profile="lines")
    def shared(is_first: bool) -> None:
        if is_first:
            thread = threading.Thread(target=shared, args=(False,))
            thread.start()
            thread.join()
        others.append(sys.gettrace())

    shared(True)
    assert others[0] is None
    (call,) = calls(recording)
    assert max(spot.calls for spot in call.spots) == 1


def test_without_the_package(tmp_path):
    """It is said once, with what to install, and the function is recorded without."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGE, str(tmp_path)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install 'otel-mlperf[lines]'") == 1
