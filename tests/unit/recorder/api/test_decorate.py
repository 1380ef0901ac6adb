"""A decorated generator's section covers its body, and never its consumer."""

from __future__ import annotations

import asyncio
import gc
import inspect

import pytest
from opentelemetry import trace

import otel_mlperf as om
from otel_mlperf.recorder.sections.section_context import CURRENT


@om.span
def count(n):
    """Yields 0 … n - 1; what is sent comes back."""
    got = []
    for i in range(n):
        with om.span("inside"):
            got.append((yield i))
    return got


@om.span("numbers")
async def numbers(n):
    """The asynchronous sibling."""
    for i in range(n):
        with om.span("inside"):
            await asyncio.sleep(0)
            yield i


def test_kind_is_kept():
    """Decorated generators are still generator functions."""
    assert inspect.isgeneratorfunction(count)
    assert inspect.isasyncgenfunction(numbers)


@pytest.mark.fault("F55")
def test_covers_the_body(recording):
    """The section begins with the body and ends with it; what is inside is its child."""
    with om.span("consumer"):
        assert list(count(3)) == [0, 1, 2]

    row = recording.one("count")
    assert row.parent == recording.one("consumer").span
    assert [inner.parent for inner in recording.sections("inside")] == [row.span] * 3
    assert row.end >= max(inner.end for inner in recording.sections("inside"))


def test_not_started_leaves_nothing(recording):
    """A generator that is never asked for anything is not recorded."""
    count(3).close()

    assert recording.sections("count") == []


@pytest.mark.fault("F55")
def test_consumer_does_not_see_it(recording):
    """Between two values the consumer's own section is current."""
    with om.span("consumer"):
        mine = CURRENT.get()
        generator = count(2)
        next(generator)
        with om.span("between"):
            pass
        next(generator)
        generator.close()
        assert CURRENT.get() is mine

    assert recording.one("between").parent == recording.one("consumer").span


def test_what_the_body_has_open(recording):
    """After a yield the body goes on inside the sections that it had open."""

    @om.span
    def body():
        with om.span("outer"):
            yield
            with om.span("inner"):
                yield

    generator = body()
    next(generator)
    with om.span("consumer"):
        next(generator)
        with om.span("between"):
            list(generator)

    assert recording.one("inner").parent == recording.one("outer").span
    assert recording.one("outer").parent == recording.one("body").span
    assert recording.one("between").parent == recording.one("consumer").span
    assert recording.one("consumer").parent == recording.span


@pytest.mark.fault("F55")
def test_send_throw_return(recording):
    """Values sent, exceptions thrown and the returned value pass through."""
    generator = count(2)
    assert next(generator) == 0
    assert generator.send("a") == 1
    with pytest.raises(StopIteration) as stop:
        generator.send("b")
    assert stop.value.value == ["a", "b"]

    thrown = count(2)
    next(thrown)
    with pytest.raises(KeyError):
        thrown.throw(KeyError("x"))
    assert [row.error[:1] for row in recording.sections("count")] == [[], ["KeyError"]]


@pytest.mark.fault("F55")
def test_interleaved(recording):
    """Two generators taking turns do not become each other's parents."""
    before = CURRENT.get()
    first, second = count(2), count(3)
    for generator in (first, second, first, second, second):
        next(generator)
    assert [list(first), list(second)] == [[], []]

    assert CURRENT.get() is before
    assert [row.parent for row in recording.sections("count")] == [recording.span] * 2
    assert {row.parent for row in recording.sections("inside")} == {
        row.span for row in recording.sections("count")
    }


@pytest.mark.fault("F55")
def test_undecorated_interleaved(recording):
    """Sections left open across yields of plain generators end in any order, without harm."""

    def plain(name):
        with om.span(name):
            yield
            yield

    before = CURRENT.get()
    first, second = plain("first"), plain("second")
    next(first), next(second)
    list(first)
    with om.span("meanwhile"):
        pass
    list(second)

    assert len(recording.sections("first")) == len(recording.sections("second")) == 1
    meanwhile = recording.one("meanwhile")
    assert meanwhile.parent in (recording.span, recording.one("second").span)
    assert recording.open() == ["run"]
    CURRENT.set(before)


@pytest.mark.fault("F55")
def test_finished_parent_is_skipped(recording):
    """A section left current after its end is nobody's parent any more."""

    def plain():
        with om.span("generator"):
            yield

    before = CURRENT.get()
    generator = plain()
    next(generator)
    with om.span("outer"):
        inner = om.span("inner").__enter__()
        list(generator)
        with om.span("after"):
            pass
        inner.__exit__(None, None, None)

    outer = recording.one("outer")
    assert recording.one("after").parent in (
        recording.span,
        outer.span,
        recording.one("inner").span,
    )
    assert recording.one("generator").end <= outer.end
    assert recording.open() == ["run"]
    CURRENT.set(before)


@pytest.mark.fault("F55")
def test_dropped(recording):
    """A generator that is dropped half way ends its section, without an error."""
    generator = count(5)
    next(generator)
    del generator
    gc.collect()

    row = recording.one("count")
    assert not row.is_error


@pytest.mark.fault("F55")
def test_async_generator(recording):
    """An async generator's section covers its body and not its consumer."""

    async def consume():
        with om.span("consumer"):
            async for _ in numbers(3):
                with om.span("between"):
                    await asyncio.sleep(0)

    asyncio.run(consume())

    consumer, row = recording.one("consumer"), recording.one("numbers")
    assert row.parent == consumer.span
    assert {r.parent for r in recording.sections("between")} == {consumer.span}
    assert {r.parent for r in recording.sections("inside")} == {row.span}


@pytest.mark.fault("F55")
def test_async_generator_closed_elsewhere(recording):
    """Closed by another task, an async generator ends its section once and logs nothing."""

    async def consume():
        generator = numbers(3)
        await anext(generator)
        await asyncio.create_task(generator.aclose())
        assert not trace.get_current_span().is_recording() or CURRENT.get() is not None

    asyncio.run(consume())

    assert len(recording.sections("numbers")) == 1
    assert recording.open() == ["run"]


@pytest.mark.fault("F55")
def test_async_throw(recording):
    """An exception thrown into an async generator is the body's to handle."""

    @om.span
    async def patient():
        while True:
            try:
                yield "value"
            except KeyError:
                yield "caught"

    async def consume():
        generator = patient()
        await anext(generator)
        caught = await generator.athrow(KeyError("x"))
        await generator.aclose()
        return caught

    assert asyncio.run(consume()) == "caught"
    assert not recording.one("patient").is_error


def test_added_up(recording):
    """A generator that is only added up counts each turn of its body, and is no span."""

    @om.span("summed", aggregate=True)
    def summed():
        yield trace.get_current_span().get_span_context().span_id

    @om.span("summed", aggregate=True)
    async def summed_too():
        yield trace.get_current_span().get_span_context().span_id

    async def consume():
        return [seen async for seen in summed_too()]

    with om.span("consumer") as consumer:
        assert list(summed()) == [consumer.sid]
        assert asyncio.run(consume()) == [consumer.sid]
        assert CURRENT.get() is consumer

    found = {key[9]: cells for key, cells in recording.cells().items() if "summed" in key}
    assert [found[beside][0][0] for beside in (False, True)] == [2, 2]


def test_off():
    """Without a run decorated generators just work."""
    assert list(count(2)) == [0, 1]

    async def consume():
        return [i async for i in numbers(2)]

    assert asyncio.run(consume()) == [0, 1]
