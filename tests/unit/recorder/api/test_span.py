"""``span`` records in each of its shapes, and only what happened."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import sys
import threading

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import MAX_ENTRIES, Word


@om.span
def double(x):
    """Twice."""
    return 2 * x


def test_block(recording):
    """A block becomes one row: its times, under the run, in the run's trace."""
    with om.span("forward"):
        pass

    row = recording.one("forward")
    assert (row.parent, row.root) == (recording.span, recording.span)
    assert recording.recorder.meta.monotonic_ns <= row.start <= row.end
    assert row.track == threading.get_ident()
    assert not row.is_error


def test_nesting(recording):
    """A block inside a block has it as parent, and siblings share theirs."""
    with om.span("outer"):
        with om.span("first"):
            pass
        with om.span("second"), om.span("inner"):
            pass

    outer = recording.one("outer")
    assert [recording.one(n).parent for n in ("first", "second")] == [outer.span] * 2
    assert recording.one("inner").parent == recording.one("second").span
    assert recording.one("inner").root == recording.span


def test_open_sections_are_seen(recording):
    """What is open stands in the table, and leaves it when it ends."""
    with om.span("outer"), om.span("inner"):
        assert set(recording.open()) == {"run", "outer", "inner"}

    assert recording.open() == ["run"]


def test_attributes(recording):
    """Attributes of the call and of ``set`` arrive, the later value winning."""
    with om.span("load", file="a.parquet", rows=1) as section:
        section.set(rows=7, ratio=0.5)

    assert recording.one("load").attributes == {"file": "a.parquet", "rows": 7, "ratio": 0.5}


def test_set_without_attributes_before(recording):
    """A section opened bare takes attributes too."""
    with om.span("load") as section:
        section.set(rows=7)

    assert recording.one("load").attributes == {"rows": 7}


def test_set_after_the_end(recording):
    """Attributes set after the end change nothing and raise nothing."""
    with om.span("load") as section:
        pass
    section.set(rows=7)

    assert recording.one("load").attributes == {}


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("forward", names.FORWARD),
        ("checkpoint", names.CHECKPOINT),
        ("Model.forward", names.FORWARD),
        ("all_reduce", names.COMMUNICATION),
        ("something", names.OTHER),
    ],
)
def test_known_names(recording, name, category):
    """Known names imply their category, alone or as a method's."""
    with om.span(name):
        pass

    assert recording.one(name).category == category


def test_category(recording):
    """A category that is given wins over the implied one."""
    with om.span("forward", category="io"):
        pass

    assert recording.one("forward").category == "io"


def test_bare_decorator(recording):
    """``@span`` names the section after the function and says where it is."""
    assert double(21) == 42

    row = recording.one("double")
    assert row.constant[names.CODE_FUNCTION].endswith("double")
    assert row.constant[names.CODE_FILE] == __file__
    assert row.constant[names.CODE_LINE] > 0
    assert double.__doc__ == "Twice."


@pytest.mark.parametrize("arguments", [("train",), ()])
def test_decorator_with_arguments(recording, arguments):
    """Decorated with a name, attributes, or nothing, a function stays what it is."""

    @om.span(*arguments, category="io", layer=3)
    def work(a, *, b=2):
        return a + b

    assert work(1, b=5) == 6
    assert inspect.signature(work) == inspect.signature(work.__wrapped__)
    row = recording.one(arguments[0] if arguments else "work")
    assert (row.category, row.constant["layer"]) == ("io", 3)


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("settings", [{}, {"category": "forward"}, {"aggregate": True}])
def test_decorator_without_a_name(start, when, settings):
    """Without a name the function's is taken, decorated before the run or during it."""
    recording = start() if when == "during" else None

    @om.span(**settings)
    def work():
        return 7

    recording = recording or start()
    assert work() == 7
    if settings.get("aggregate"):
        assert [key[1] for key in recording.cells()] == ["work"]
    else:
        assert recording.one("work").category == settings.get("category", names.OTHER)


def test_block_without_a_name(recording):
    """A block without a name is recorded all the same."""
    with om.span(), om.span(aggregate=True):
        pass

    assert len(recording.sections("unnamed")) == 1
    assert [key[1] for key in recording.cells()] == ["unnamed"]


def test_section_as_decorator(recording):
    """``@span("name")`` works as well once the run is active."""

    @om.span("work")
    def work():
        return 7

    assert [work(), work()] == [7, 7]
    assert len(recording.sections("work")) == 2


def test_coroutine(recording):
    """A decorated coroutine function stays one and is measured to its end."""

    @om.span
    async def work():
        with om.span("inside"):
            await asyncio.sleep(0)
        return 7

    assert inspect.iscoroutinefunction(work)
    assert asyncio.run(work()) == 7
    (row,) = [r for r in recording.sections() if r.name == "work"]
    assert recording.one("inside").parent == row.span


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_methods(recording, kind):
    """Static and class methods are decorated from outside too."""

    class Model:
        @om.span("work")
        @kind
        def work(*arguments):
            return len(arguments)

    assert Model.work() == (0 if kind is staticmethod else 1)
    assert recording.one("work")


def test_classes_are_left_alone(recording, said):
    """A class stays a class; that is said once."""

    @om.span
    class Model:
        pass

    assert isinstance(Model(), Model)
    assert len(said()) == 1


def test_decorated_function_is_pickled(recording):
    """A decorated function at module level pickles, as workers need it to."""
    sys.modules.setdefault(__name__, sys.modules[double.__module__])

    assert pickle.loads(pickle.dumps(double)) is double


def test_decorated_before_start(start):
    """Decorated before the run, and called before, in and after it: only the run counts."""

    @om.span("early")
    def work():
        return 7

    work()
    recording = start()
    work()
    om.stop()
    work()

    assert len(recording.sections("early")) == 1


def test_handle_from_before_start(start):
    """A handle made before the run records when it is entered in it."""
    handle = om.span("early", category="io", layer=1)
    with handle:
        pass
    recording = start()
    with handle, handle:
        pass

    outer, inner = sorted(recording.sections("early"), key=lambda row: row.start)
    assert (outer.category, outer.constant) == ("io", {"layer": 1})
    assert inner.parent == outer.span


def test_block_open_at_start(start):
    """A block that was entered before the run leaves no row and breaks nothing."""
    with om.span("early"):
        recording = start()
        with om.span("inside"):
            pass

    assert recording.sections("early") == []
    assert recording.one("inside").parent == recording.span


def test_same_section_again(recording):
    """One section object, entered again and again, open or not, is one section a time."""
    section = om.span("again")
    with section, section, section:
        pass
    with section:
        pass

    rows = recording.sections("again")
    assert len(rows) == 4
    assert len({row.span for row in rows}) == 4
    assert recording.open() == ["run"]


@pytest.mark.fault("F56")
def test_recursion(recording):
    """10,000 sections deep: each inside the one before."""

    def dive(depth):
        if depth:
            with om.span("deep"):
                dive(depth - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    threading.stack_size(512 << 20)
    try:
        thread = threading.Thread(target=dive, args=(10_000,))
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(0)
    rows = recording.sections("deep")
    assert len(rows) == 10_000
    parents = {row.span: row.parent for row in rows}
    assert sum(parent in parents for parent in parents.values()) == 9_999
    assert recording.word(Word.LOST_OPEN) > 0
    assert recording.open() == ["run"]


@pytest.mark.fault("F56")
def test_one_frame_a_call(recording):
    """A decorated function costs one frame of the recursion limit, not more."""
    depth = 0

    @om.span
    def dive():
        nonlocal depth
        depth += 1
        dive()

    with pytest.raises(RecursionError):
        dive()

    assert depth > (sys.getrecursionlimit() - 200) / 2 - 10


def test_too_many_names(recording, said):
    """Past the limit names become ``other``, counted and said once."""
    for i in range(MAX_ENTRIES + 10):
        with om.span(f"name {i}"):
            pass

    assert len(recording.sections()) == MAX_ENTRIES + 10
    assert len(recording.sections("other")) == recording.word(Word.LOST_ENTRIES) > 0
    assert len([text for text in said() if "section names" in text]) == 1


@pytest.mark.fault("F52")
@pytest.mark.parametrize("name", ["", None, 7, "a\0b", "\ud800", "x" * 1000, ("t",), [1]])
def test_odd_names(recording, name):
    """Any name at all is recorded as text of at most 256 bytes."""
    with om.span(name):
        pass
    with om.span(name, rows=1):
        pass

    (first, second) = [row for row in recording.sections() if row.name != "run"]
    assert first.name == second.name
    assert 0 < len(first.name.encode()) <= 256


def test_disabled(start, monkeypatch):
    """With OTEL_SDK_DISABLED nothing is recorded and everything still works."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    run = om.start("nothing")
    with run, om.span("a") as section, om.span("b", rows=1), om.step(), om.phase("test"):
        section.set(rows=2)
        om.log(loss=1.0)
        om.mark_step()
        assert [*om.steps([1, 2])] == [1, 2]
        assert [*om.epochs(2)] == [0, 1]
        assert double(1) == 2
    om.counter("c").add(1)
    om.gauge("g").set(1)

    assert (run.id, run.path) == ("", None)
