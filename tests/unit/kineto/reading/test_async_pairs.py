"""Asynchronous starts and ends are read as events, however they overlap."""

from __future__ import annotations

import itertools
import random

import pytest
from kineto_traces import operator, write_trace

from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.kineto.trace_events import NONE


def half(phase, name, time_us, *, ident: object = 1, pid=1, cat="serve", **more):
    """One half of a pair; without an ``id`` where it is None."""
    entry = {"ph": phase, "cat": cat, "name": name, "pid": pid, "ts": time_us, **more}
    return entry if ident is None else entry | {"id": ident}


def pair(name, start_us, end_us, *, phases="be", **of):
    return [half(phases[0], name, start_us, **of), half(phases[1], name, end_us, **of)]


@pytest.fixture
def read(tmp_path):
    return lambda entries: read_trace(write_trace(tmp_path / "t.json", entries, base_ns=None))


def found(trace):
    """Name, start and duration of each event, in microseconds."""
    events = trace.events
    times = (events.start_ns.tolist(), events.duration_ns.tolist())
    rows = zip(events.name.tolist(), *times, strict=True)
    return [(trace.names[name], start // 1000, length // 1000) for name, start, length in rows]


@pytest.mark.parametrize("phases", ["be", "SF"])
def test_a_begin_and_its_end_are_one_event(read, phases):
    """Of the old form as well, next to steps that are only counted."""
    trace = read([*pair("request", 10, 25, phases=phases), half("n", "token", 12)])

    assert found(trace) == [("request", 10, 15)]
    assert trace.counts == {phases[0]: 1, phases[1]: 1, "n": 1}
    assert trace.damage == []


def test_an_id_counts_within_its_category_scope_and_process(read):
    """Equal ids elsewhere are other events; a global one is one in all processes."""
    entries = [
        half("b", "a", 0),
        half("b", "b", 1, cat="other"),
        half("b", "c", 2, scope="s"),
        half("b", "d", 3, pid=2),
        half("b", "e", 4, ident=None, id2={"local": "0x1"}),
        half("b", "f", 5, ident=None, id2={"global": "0x1"}),
        half("e", "a", 10),
        half("e", "b", 21, cat="other"),
        half("e", "c", 32, scope="s"),
        half("e", "d", 43, pid=2),
        half("e", "e", 54, ident=None, id2={"local": "0x1"}),
        half("e", "f", 65, ident=None, id2={"global": "0x1"}, pid=9),
    ]

    assert found(read(entries)) == [(name, at, 10 * (at + 1)) for at, name in enumerate("abcdef")]


def test_what_is_open_under_one_id_is_nested_or_told_by_its_name(read):
    """An end of an outer name does not end what is inside."""
    nested = [half("b", "request", 0), *pair("decode", 2, 5), half("e", "request", 9)]
    crossed = [
        half("b", "send", 20, ident=2),
        half("b", "kernel", 21, ident=2),
        half("e", "send", 25, ident=2),
        half("e", "kernel", 29, ident=2),
    ]

    trace = read([*nested, *crossed])

    assert found(trace) == [("request", 0, 9), ("decode", 2, 3), ("send", 20, 5), ("kernel", 21, 8)]
    assert link(trace).around.tolist() == [NONE, 0, NONE, NONE]


@pytest.mark.parametrize("seed", range(5))
def test_events_of_different_ids_are_never_inside_each_other(read, seed):
    """However they overlap, and in whatever order their pairs stand in the file."""
    chance = random.Random(seed)
    pairs = []
    for ident in range(60):
        start = chance.randrange(500)
        pairs.append(pair(f"r{ident}", start, start + chance.randrange(1, 200), ident=ident))
    chance.shuffle(pairs)
    entries = [entry for both in pairs for entry in both]
    if seed % 2:
        entries.sort(key=lambda entry: entry["ts"])

    trace = read(entries)

    wanted = {(a["name"], a["ts"], b["ts"] - a["ts"]) for a, b in pairs}
    assert set(found(trace)) == wanted
    assert (link(trace).around == NONE).all()


@pytest.mark.parametrize("order", list(itertools.permutations([25, 45])))
def test_an_end_that_stands_before_its_begin_ends_it(read, order):
    """The format has no order; an end that is earlier in time belongs to what began before."""
    entries = [
        *(half("e", "late", time_us) for time_us in order),
        half("b", "late", 20),
        half("b", "late", 40),
        half("e", "of another window", 1, ident=2),
        *pair("of this window", 5, 9, ident=2),
    ]

    trace = read(entries)

    assert sorted(found(trace), key=lambda event: event[1]) == [
        ("of this window", 5, 4), ("late", 20, 5), ("late", 40, 5)
    ]  # fmt: skip
    assert [(item.kind, item.occurrences) for item in trace.damage] == [("unmatched_end", 1)]


def test_halves_without_the_other_one_are_counted(read):
    """What has ended under an id that is still open is kept."""
    entries = [
        half("e", "nothing", 1),
        half("b", "open", 2, ident=5),
        *pair("part", 3, 4, ident=5),
        operator("aten::mm", 5, 1),
    ]

    trace = read(entries)

    assert found(trace) == [("part", 3, 1), ("aten::mm", 5, 1)]
    assert [(item.kind, item.occurrences) for item in trace.damage] == [
        ("unmatched_end", 1),
        ("unmatched_begin", 1),
    ]
