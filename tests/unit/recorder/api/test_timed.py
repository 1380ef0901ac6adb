"""A piece of the program is reported at its end, with and without a run."""

from __future__ import annotations

import asyncio
import re

import pytest
from fake_cuda import Account, Cuda

import otel_mlperf as om
from otel_mlperf.recorder.api import memory
from otel_mlperf.recorder.core.used_so_far import Counters

KEPT_BYTES = 64_000_000


def lines(capsys):
    """What was printed, without the times and what they needed of memory."""
    return [
        re.sub(r" [\d.]+ (ns|µs|ms|s)(, memory \S+ \w+)?", " TIME", line)
        for line in capsys.readouterr().err.splitlines()
    ]


def test_without_a_run(capsys):
    """One line at the end, and nothing else is said: no run is missed."""
    with om.timed("load") as section:
        section.set(rows=1)

    assert lines(capsys) == ["load TIME"]


def test_in_a_run_it_is_a_section(recording, capsys):
    """It is recorded like a span, and the line tells the failure that ended it."""
    with pytest.raises(ValueError, match="x"), om.timed("load"):
        raise ValueError("x")

    assert recording.one("load").is_error
    assert lines(capsys) == ["load TIME, then ValueError"]


def test_memory_that_is_kept_is_told(capsys):
    """What the process has more of at the end, and less of once it is free."""
    with om.timed("load"):
        table = b"x" * KEPT_BYTES
    with om.timed("drop"):
        del table

    loaded, dropped = (
        re.fullmatch(r"\w+ [\d.]+ \S+, memory ([+-][\d.]+) MB", line)
        for line in capsys.readouterr().err.splitlines()
    )
    assert float(loaded[1]) * 1e6 == pytest.approx(KEPT_BYTES, rel=0.1)
    assert float(dropped[1]) * 1e6 == pytest.approx(-KEPT_BYTES, rel=0.1)


def test_memory_of_a_device_is_told(capsys, monkeypatch):
    """By what PyTorch's allocator has given out, where a device is in use."""
    account = Account(allocated=1_000_000)
    monkeypatch.setattr(memory, "_counters", Counters(find_cuda=lambda: Cuda([account])))
    with om.timed("move"):
        account.allocate(8_000_000)
        account.allocate(-2_000_000)
    with om.timed("again"):
        account.allocate(1_000_000)

    assert lines(capsys) == [
        "move TIME, cuda +6.00 MB, cuda peak 9.00 MB",
        "again TIME, cuda +1.00 MB",  # below the peak before
    ]


def test_functions_and_coroutines(capsys):
    """Decorated, each call is told, under the name given or the function's own."""

    @om.timed("adding")
    def add(a, b):
        return a + b

    @om.timed
    async def wait(value):
        await asyncio.sleep(0)
        return value

    assert [add(1, 2), add(3, b=4), asyncio.run(wait(5))] == [3, 7, 5]
    assert lines(capsys)[:2] == ["adding TIME"] * 2
    assert wait.__name__ == "wait"


def test_recursion(capsys):
    """A block inside itself is told twice, the inner one first."""
    timed = om.timed("block")
    with timed, timed:
        pass

    assert lines(capsys) == ["block TIME"] * 2


def test_generators_stay_as_they_are(said):
    """A generator is not wrapped: its making is not its work, which is said."""

    def numbers():
        yield 1

    assert om.timed(numbers) is numbers
    assert "use span()" in said()[0]
