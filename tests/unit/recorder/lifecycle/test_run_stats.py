"""The figures that a program gets about its sections are exact, at any time and place."""

from __future__ import annotations

import os
import pickle
import threading

import pytest

import otel_mlperf as om
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.journal.ring_scan import rows_of_kind


def told(stats):
    """Count, sum, shortest and longest by name."""
    return {n: (o.count, o.total_ns, o.min_ns, o.max_ns) for n, o in stats.items()}


def written(rows):
    """The same of rows in the journal."""
    by_name = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row.end - row.start)
    return {n: (len(of), sum(of), min(of), max(of)) for n, of in by_name.items()}


def work(steps=5):
    for _ in om.steps(range(steps)):
        with om.span("forward"), om.span("inner"):
            pass


def test_numbers_are_those_of_the_rows(recording):
    """Count, sum, shortest and longest are those of the rows, also of other threads."""
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    work()

    stats = recording.run.stats()

    assert told(stats) == written(recording.sections())
    assert stats.complete
    assert stats["inner"].count == 15
    assert stats["forward"].self_ns == stats["forward"].total_ns - stats["inner"].total_ns


def test_since_epoch_mark_and_the_last_call(recording):
    """From the epoch's begin, a mark or the last call on only what ended since counts."""
    run = recording.run
    work(3)
    mark = run.mark()
    for _ in om.epochs(1):
        work(2)
        counts = [run.stats(since=since)["inner"].count for since in ("start", "epoch", mark)]
        after_last = "inner" in run.stats(since="last")
        work(1)
        last = run.stats(since="last")

    assert counts == [5, 2, 2]
    assert not after_last
    assert last["inner"].count == 1
    assert told(last) == written(recording.sections()[-len(last) - 1 : -1])


def test_own_counters_are_told_as_they_are_now(recording):
    """All label sets and threads of a counter together, since the begin, a mark, a question."""
    run, tokens = recording.run, om.counter("tokens")
    tokens.add(5)
    thread = threading.Thread(target=tokens.add, args=(2,), kwargs={"lang": "de"})
    thread.start()
    thread.join()
    mark = run.mark()
    om.counter("hits").add(0.5)
    tokens.add(3)

    assert run.stats().counted == {"tokens": 10, "hits": 0.5}
    assert run.stats(since=mark).counted == {"tokens": 3, "hits": 0.5}
    assert run.stats(since="last").counted == {"tokens": 0, "hits": 0}
    assert "counted: tokens 10 · hits 0.5" in str(run)


def test_open_sections_have_no_part(recording):
    """A section counts once it has ended."""
    with om.span("open"):
        assert "open" not in recording.run.stats()
    assert recording.run.stats()["open"].count == 1


def test_added_up_sections(recording):
    """Of what is only added up all is exact; shortest and longest are not known since a mark."""
    run = recording.run
    with om.span("around"):
        for _ in range(3):
            with om.span("tiny", aggregate=True):
                pass
        mark = run.mark()
        with om.span("tiny", aggregate=True):
            pass
    ((cell,),) = [of for key, of in recording.cells().items() if key[0] == "aggregate"]
    stats = run.stats()
    tiny, later = stats["tiny"], run.stats(since=mark)["tiny"]

    assert (tiny.count, tiny.total_ns, tiny.min_ns, tiny.max_ns) == tuple(cell[:4])
    assert (tiny.p95_ns, tiny.variance_ns2) == (None, None)
    assert (later.count, later.min_ns) == (1, None)
    assert stats["around"].self_ns == stats["around"].total_ns - tiny.total_ns


def test_what_was_lost_is_said(start):
    """What found no room in the journal is missing, and said to be."""
    recording = start(journal_rows=2048)
    for _ in range(3000):
        with om.span("forward"):
            pass

    stats = recording.run.stats()
    lost = recording.word(Word.LOST_RING_FULL)

    assert stats["forward"].count + lost == 3000
    assert not stats.complete
    assert f"{lost:,} sections" in stats.missing[0]


def test_after_the_end(recording):
    """After a stop it is what was known at the end, the run and what was open included."""
    work()
    recording.run.stats()
    work(1)
    before = written(recording.sections())
    om.stop()

    stats = recording.run.stats()

    assert told(stats) == before | written(recording.sections("run"))
    assert recording.run.stats(since="last")["inner"].count == 1
    assert recording.run.stats().elapsed_ns == stats.elapsed_ns


def test_forked_child_is_told_of_its_own(recording):
    """A forked child is told of what it recorded itself, of nothing before."""
    run = recording.run
    work()
    mark = run.mark()
    at, to = os.pipe()
    pid = os.fork()
    if not pid:
        found = [dict(run.stats())]
        with om.span("child"):
            pass
        found += [list(run.stats(since=since)) for since in ("start", mark)]
        os.write(to, pickle.dumps((found, om.start.__name__)))
        from otel_mlperf.recorder.core import recording as core

        path = core.active().journal.path
        os.unlink(path)
        os._exit(0)
    os.waitpid(pid, 0)
    found, _ = pickle.loads(os.read(at, 1 << 16))
    os.close(at)
    os.close(to)

    assert found == [{}, ["child"], ["child"]]
    assert run.stats()["inner"].count == 5


def test_while_nothing_is_recorded():
    """A run that records nothing has no sections, whatever is asked."""
    run = om.start("off", disabled=True)

    for since in ("start", "epoch", "last", run.mark(), "whatever", None):
        assert dict(run.stats(since=since)) == {}
    assert not run.stats().complete
    assert "total" in str(run)


def test_unknown_word_is_said(recording, said):
    """A word that means nothing is said once, and the whole run is told."""
    work(1)

    assert recording.run.stats(since="yesterday").since == "start"
    assert "yesterday" in said()[0]


@pytest.mark.slow
def test_table_adds_up(recording):
    """Printed, it is a table whose last row has all calls; in a notebook, too, and escaped."""
    with om.span("<b>"):
        pass
    stats = recording.run.stats()
    rows = str(stats).splitlines()

    assert rows[-1].split()[:2] == ["total", "1"]
    assert rows[2].split()[0] == "<b>"
    assert "&lt;b&gt;" in stats._repr_html_()
    assert "&lt;b&gt;" in recording.run._repr_html_()


@pytest.mark.parametrize("count", [1, 20])
def test_p95_of_few_calls_is_exact(recording, count):
    """As long as every call is known, 95 of 100 took no longer than one of them."""
    for _ in range(count):
        with om.span("forward"):
            pass

    durations = sorted(row.end - row.start for row in recording.sections("forward"))

    assert recording.run.stats()["forward"].p95_ns == durations[-(-95 * count // 100) - 1]


def marks_of(recording):
    """Name and step of each mark in the journal, the package's own included."""
    entries, rows = recording.reader.new_entries(), recording.reader.take()
    names = {0: ""} | {number: content[1] for number, content in entries.items()}
    return [(names[int(row["name"])], int(row["parent"])) for row in rows_of_kind(rows, Kind.MARK)]


def test_a_mark_has_its_name_and_its_step(recording):
    """The step that is open, else the one that comes next; a word that is none is told as text."""
    run = recording.run
    for n in om.steps(range(3)):
        if n == 1:
            run.mark("lr halved")
    run.mark()
    run.mark(name=("odd", 1))

    assert marks_of(recording)[:2] == [("lr halved", 1), ("mark", 3)]
    assert marks_of(recording) == []


def test_what_the_package_marks_has_no_name(recording):
    """Epochs, questions and the end are no points that a program has marked."""
    with om.epoch(4):
        recording.run.stats(since="last")
    recording.run.stop()

    assert marks_of(recording) == [("", 0)] * 3
