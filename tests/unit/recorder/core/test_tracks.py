"""Tasks and threads are kept apart, and each other's sections never mixed up."""

from __future__ import annotations

import asyncio
import threading

import pytest

import otel_mlperf as om
from otel_mlperf.recorder.sections.section_context import CURRENT


@pytest.mark.fault("F56")
def test_gather(recording):
    """Tasks that run at once have tracks of their own and the section that made them as parent."""

    async def leaf(i):
        with om.span(f"leaf {i}"):
            mine = CURRENT.get()
            await asyncio.sleep(0.001 * (3 - i))
            with om.span("inner"):
                pass
            assert CURRENT.get() is mine

    async def main():
        with om.span("root"):
            await asyncio.gather(*(leaf(i) for i in range(3)))

    asyncio.run(main())

    root = recording.one("root")
    leaves = [recording.one(f"leaf {i}") for i in range(3)]
    assert {leaf.parent for leaf in leaves} == {root.span}
    assert len({leaf.track for leaf in leaves} | {root.track}) == 4
    inner = {row.parent: row.track for row in recording.sections("inner")}
    assert inner == {leaf.span: leaf.track for leaf in leaves}


def test_task_tracks_are_registered(recording):
    """A task's track is in the journal as a task; numbers of finished tasks are used again."""

    async def leaf():
        with om.span("leaf"):
            await asyncio.sleep(0)

    async def main():
        for _ in range(50):
            await asyncio.create_task(leaf())

    asyncio.run(main())

    recording.rows()
    tasks = [entry for entry in recording.entries.values() if entry[0] == "track" and entry[4]]
    assert 0 < len(tasks) < 10
    assert {row.track for row in recording.sections("leaf")} <= {entry[1] for entry in tasks}


@pytest.mark.fault("F56")
def test_many_tasks(recording):
    """Ten thousand tasks leave every section and every name."""

    async def leaf():
        with om.span("leaf"):
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(leaf() for _ in range(10_000)))

    asyncio.run(main())
    with om.span("later"):
        pass

    assert len(recording.sections("leaf")) == 10_000
    assert recording.one("later")


@pytest.mark.fault("F56")
def test_to_thread(recording):
    """``asyncio.to_thread`` carries the section into the thread, on the thread's track."""

    def work():
        with om.span("inner"):
            return threading.get_ident()

    async def main():
        with om.span("outer"):
            return await asyncio.to_thread(work)

    ident = asyncio.run(main())

    inner = recording.one("inner")
    assert inner.parent == recording.one("outer").span
    assert inner.track == ident


@pytest.mark.fault("F56")
def test_threads_together(recording):
    """Eight threads at once lose and mix up nothing."""

    def work(k):
        for _ in range(500):
            with om.span(f"outer {k}"), om.span(f"inner {k}"):
                pass

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    rows = recording.sections()
    assert len(rows) == len({row.span for row in rows}) == 8 * 1000
    by_id = {row.span: row for row in rows}
    for row in rows:
        if row.name.startswith("inner"):
            assert by_id[row.parent].name == row.name.replace("inner", "outer")
            assert by_id[row.parent].track == row.track
    assert recording.open() == ["run"]


def test_start_inside_a_task(start):
    """A run that was started in a task still is the parent of what its thread does later."""

    async def begin():
        return start()

    recording = asyncio.run(begin())
    with om.span("later"):
        pass

    row = recording.one("later")
    assert (row.parent, row.root) == (recording.span, recording.span)
