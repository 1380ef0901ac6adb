"""The figures that a program gets from its run equal those stored afterwards."""

from __future__ import annotations

import threading
from pathlib import Path

from servers.running import wait_until

import otel_mlperf as om
from otel_mlperf.journal.layout import Word
from otel_mlperf.store.table_reader import Store

STORED = """
SELECT name, sum(count)::BIGINT, sum(sum_ns)::BIGINT, min(min_ns), max(max_ns)
FROM durations GROUP BY name
"""


def _record(turns):
    """Nested sections of four names."""
    for i in range(turns):
        with om.span(f"outer{i % 2}"), om.span("inner"):
            pass
        with om.span("tiny", aggregate=True):
            pass


def _await_room(run):
    """Until the agent has freed nearly all."""
    head, words = run.mark().slot, run._recorder.journal.words
    wait_until(lambda: words[Word.TAIL] >= head, what="room in the journal")


def test_stats_equal_the_stored_numbers(tmp_path):
    """More than the ring holds, from threads, epochs and after marks: equal to the store."""
    settings = {"agent": "thread", "console": False, "dir": tmp_path, "journal_rows": 2048}
    with om.start("stats", **settings) as run:
        for _ in om.epochs(4):
            mark = run.mark("turn")
            for _ in om.steps(range(2)):
                thread = threading.Thread(target=_record, args=(100,))
                thread.start()
                thread.join()
                _record(100)
                _await_room(run)
            epoch, marked = run.stats(since="epoch"), run.stats(since=mark)
        live = run.stats()
    after = run.stats()
    # The agent removes the journal when tables hold all that was in it.
    wait_until(lambda: not Path(run._recorder.journal.path).exists(), what="the end of the journal")
    stored = {row[0]: row[1:] for row in Store(run.path).rows(STORED)}
    marks = om.read_run(run.path).marks().to_arrow().to_pylist()

    for stats in (live, after):
        assert stats.complete, stats.missing
    assert {
        name: (one.count, one.total_ns, one.min_ns, one.max_ns)
        for name, one in after.items()
        if name in stored
    } == stored
    assert live["inner"].count == 4 * 2 * 200
    assert epoch["inner"].count == marked["inner"].count == 2 * 200
    assert live["inner"].total_ns == after["inner"].total_ns
    assert [(row["name"], row["number"]) for row in marks if row["name"] == "turn"] == [
        ("turn", number) for number in (0, 2, 4, 6)
    ]
