"""Everything around damage is kept, and each kind of damage is counted at its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_traces import BASE_NS, event, trace_text, training_step

from otel_mlperf.errors import TraceError
from otel_mlperf.kineto.reading.trace_reader import read_trace

WHOLE = trace_text(training_step()).encode()
NAMES = [entry["name"] for entry in training_step() if entry["ph"] == "X"]
HURT = "aten::addmm"
"""The event that the table damages."""
OTHERS = [name for name in NAMES if name != HURT]
PLACE = WHOLE.rindex(b"{", 0, WHOLE.index(HURT.encode()))


@pytest.fixture
def read(tmp_path):
    def read_bytes(data):
        path = tmp_path / "damaged.json"
        path.write_bytes(data)
        return read_trace(path)

    return read_bytes


def names(trace):
    return [trace.names[name] for name in trace.events.name]


def kinds(trace):
    return {damage.kind: damage.occurrences for damage in trace.damage}


def hurt(old, new):
    """The trace with ``old`` replaced where the hurt event has it first."""
    at = WHOLE.index(old, PLACE)
    return WHOLE[:at] + new + WHOLE[at + len(old) :]


NAME = b'"aten::addmm"'
ENDS = [match.end() for match in re.finditer(rb"\}\n?(?=,\n  \{|\n  \])", WHOLE)]
EVENT_ENDS = [end for entry, end in zip(training_step(), ENDS, strict=True) if entry["ph"] == "X"]
KEPT = {
    "an unescaped quote in a name, as torch 2.13 writes it": (
        hurt(NAME, b'"say "hi" there"'),
        'say "hi" there',
        "unescaped_quote",
    ),
    "an unescaped quote at the end of a name": (
        hurt(NAME, b'"say "hi""'),
        'say "hi"',
        "unescaped_quote",
    ),
    "an unescaped quote beside an escaped one": (
        hurt(NAME, rb'"a \" b "c"'),
        'a " b "c',
        "unescaped_quote",
    ),
    "a name that holds what looks like fields": (
        hurt(NAME, b'"a, "b": 1"'),
        'a, "b": 1',
        "unescaped_quote",
    ),
    "a bad escape": (hurt(NAME, rb'"C:\data\x"'), r"C:\data\x", "bad_escape"),
    "a bad unicode escape": (hurt(NAME, rb'"\u12g4"'), r"\u12g4", "bad_escape"),
    "raw control characters": (hurt(NAME, b'"a\tb\x00c"'), "a\tb\0c", "control_character"),
    "a raw line break": (hurt(NAME, b'"a\nb"'), "a\nb", "control_character"),
    "invalid UTF-8": (hurt(NAME, b'"a\xff\xfeb"'), "a\ufffd\ufffdb", "invalid_utf8"),
    "half a surrogate pair": (hurt(NAME, rb'"a\ud800b"'), "a\ufffdb", "lone_surrogate"),
    "NaN among arguments": (
        hurt(b'"External id"', b'"bw": NaN, "External id"'),
        HURT,
        "not_a_number",
    ),
    "inf as C++ writes it": (
        hurt(b'"External id"', b'"bw": inf, "External id"'),
        HURT,
        "not_a_number",
    ),
    "-nan as C++ writes it": (
        hurt(b'"External id"', b'"bw": -nan, "External id"'),
        HURT,
        "not_a_number",
    ),
    "5,000 digits in an argument": (hurt(b": 12", b": " + b"9" * 5000), HURT, "number_too_long"),
    "an argument beyond 64 bits": (hurt(b": 12", b": 99999999999999999999"), HURT, "out_of_range"),
    "an argument of another type": (hurt(b": 12", b': {"a": [1]}'), HURT, "wrong_type"),
    "a number where the name should be": (hurt(NAME, b"17"), "", "wrong_type"),
    "a list where the arguments should be": (
        hurt(b'{\n    "External id": 12\n  }', b"[1]"),
        HURT,
        "wrong_type",
    ),
    "a true where the process should be": (
        hurt(b'"pid": 4242', b'"pid": true'),
        HURT,
        "wrong_type",
    ),
    "no process": (hurt(b'"pid": 4242,', b""), HURT, "missing_field"),
    "no thread": (hurt(b'"tid": 4242,', b""), HURT, "missing_field"),
    "no phase": (hurt(b'"ph"', b'"hp"'), HURT, "missing_field"),
}
LOST = {
    "NaN for a time": (hurt(b": 1020.001", b": NaN"), "not_a_number"),
    "Infinity for a duration": (hurt(b": 80.999", b": Infinity"), "not_a_number"),
    "1e400 for a time": (hurt(b": 1020.001", b": 1e400"), "out_of_range"),
    "a time beyond 64 bits": (hurt(b": 1020.001", b": 9e15"), "out_of_range"),
    "5,000 digits for a time": (hurt(b": 1020.001", b": " + b"9" * 5000), "number_too_long"),
    "a word for a time": (hurt(b": 1020.001", b': "soon"'), "wrong_type"),
    "no time": (hurt(b'"ts": 1020.001,', b""), "missing_field"),
    "no duration": (hurt(b'"dur": 80.999', b'"xyz": 1'), "missing_field"),
    "a negative duration": (hurt(b'"dur": 80', b'"dur": -80'), "negative_duration"),
    "no phase and no duration": (
        hurt(b'"ph"', b'"hp"').replace(b'"dur": 80.999', b'"xyz": 1'),
        "missing_field",
    ),
    "a phase that is no text": (hurt(b'"X"', b"7"), "wrong_type"),
    "100,000 brackets": (hurt(b": 12", b": " + b"[" * 100_000 + b"]" * 100_000), "too_deep"),
    "100,000 brackets that nothing closes": (hurt(b": 12", b": " + b"[" * 100_000), "too_deep"),
    "100,000 objects in each other": (hurt(b": 12", b": " + b'{"a":' * 100_000), "too_deep"),
    "a missing quote": (hurt(NAME, b'"aten::addmm'), "unreadable_event"),
    "a missing colon": (hurt(b'"dur":', b'"dur"'), "unreadable_event"),
    "a missing brace": (hurt(b"}\n}", b"}\n"), "unreadable_event"),
    "a word without quotes": (hurt(NAME, b"aten"), "unreadable_event"),
    "a name of 5 MB": (hurt(NAME, b'"' + b"x" * 5_000_000 + b'"'), "unreadable_event"),
    "a name of 5 MB without an end": (hurt(NAME, b'"' + b"x" * 5_000_000), "unreadable_event"),
}
BESIDE = {
    "a byte order mark": (b"\xef\xbb\xbf" + WHOLE, "byte_order_mark", 0),
    "bytes after the end": (WHOLE + b"rubbish", "trailing_bytes", len(WHOLE)),
    "the trace twice": (WHOLE + WHOLE, "trailing_bytes", len(WHOLE) + 1),
    "no end of the list": (WHOLE[: WHOLE.rindex(b"]")], "truncated", None),
    "no end of the object": (WHOLE[: WHOLE.rindex(b"}")], "truncated", None),
    "a cut in a field after the list": (
        WHOLE[: WHOLE.rindex(b"BaseTime") if 0 else -20],
        "truncated",
        None,
    ),
    "the end of the list among events": (
        WHOLE.replace(b"},\n  {", b"}]\n  {", 1),
        "unexpected_text",
        None,
    ),
    "values among events": (
        WHOLE.replace(b"[\n  {", b'[\n  null, 5, "x", {', 1),
        "not_an_event",
        None,
    ),
    "a damaged field before the list": (
        WHOLE.replace(b'"schemaVersion": 1', rb'"schemaVersion": "\q", "x": tru'),
        "unreadable_field",
        None,
    ),
    "a deep field before the list": (
        WHOLE.replace(b'"schemaVersion": 1', b'"x": ' + b"[" * 100_000 + b"]" * 100_000),
        "unreadable_field",
        None,
    ),
    "a quote in a field after the list": (
        WHOLE.replace(b'"trace.json"', b'"tr"ace.json"'),
        "unexpected_text",
        None,
    ),
}


@pytest.mark.fault("F86", "F87")
@pytest.mark.parametrize("case", KEPT)
def test_a_damaged_event_is_mended_and_kept(read, case):
    """The event is kept with what can be told of it, all others are whole, one kind is counted."""
    data, name, kind = KEPT[case]

    trace = read(data)

    assert names(trace) == [name if known == HURT else known for known in NAMES]
    assert kinds(trace) == {kind: 1}
    assert trace.damage[0].offset == PLACE
    row = NAMES.index(HURT)
    assert trace.events.start_ns[row] == BASE_NS + 1_020_001
    assert abs(int(trace.events.duration_ns[row])) == 80_999
    assert trace.counts == {"X": 8, "s": 2, "f": 2}


@pytest.mark.fault("F86")
@pytest.mark.parametrize("case", LOST)
def test_an_event_that_cannot_be_told_is_lost_alone(read, case):
    """All other events are whole, and the kind is counted once, at the byte of the lost event."""
    data, kind = LOST[case]

    trace = read(data)

    assert names(trace) == OTHERS
    assert kinds(trace) == {kind: 1}
    assert trace.damage[0].offset == PLACE
    assert trace.events.start_ns[0] == BASE_NS + 1_000_000


@pytest.mark.fault("F86")
@pytest.mark.parametrize("case", BESIDE)
def test_damage_beside_events_costs_none_of_them(read, case):
    """Every event is read, and the kind is counted once."""
    data, kind, offset = BESIDE[case]

    trace = read(data)

    assert names(trace) == NAMES
    assert kinds(trace) == {kind: 1}
    assert offset is None or trace.damage[0].offset == offset


@pytest.mark.parametrize(
    "case", ["a damaged field before the list", "a quote in a field after the list"]
)
def test_the_base_time_survives_damage_beside_events(read, case):
    """Fields that matter are found again behind a damaged one."""
    assert read(BESIDE[case][0]).events.start_ns[0] == BASE_NS + 1_000_000


@pytest.mark.fault("F86")
def test_a_cut_file_keeps_all_before_the_cut(read):
    """Cut at any byte of the list, the events that are whole before the cut are read."""
    first = WHOLE.index(b"[\n")

    for cut in range(first + 1, WHOLE.rindex(b"]"), 7):
        trace = read(WHOLE[:cut])
        whole = sum(end <= cut for end in ENDS)
        assert sum(trace.counts.values()) == whole, cut
        assert kinds(trace) == {"truncated": 1}


@pytest.mark.parametrize(
    "text",
    [
        "a}, {b",
        'x}, {"ph": "X"',
        "}]",
        "{",
        "}",
        "{lambda(int)#1}",
        "},{" * 200,
        '], "traceName": 1',
    ],
)
def test_texts_may_hold_what_looks_like_structure(read, text):
    """A name that imitates the end of an entry or of the list is a name, in its event's place."""
    entries = training_step()
    entries[2]["name"] = text
    data = trace_text(entries).encode()

    trace = read(data)

    assert names(trace)[2] == text
    assert trace.damage == []
    assert [data[place : place + 9] for place in trace.events.position] == [b'{\n  "ph":'] * 8


def test_an_argument_may_be_a_list_of_objects(read):
    """Objects within an event are no events, in damaged blocks either."""
    entries = training_step()
    entries[2]["args"] = {"groups": [{"name": "a", "ph": "X"}, {"name": "b"}] * 20}

    for data in (trace_text(entries).encode(), trace_text(entries).replace("aten::relu", r"\q")):
        trace = read(data if isinstance(data, bytes) else data.encode())
        assert len(trace.events) == 8


def test_many_damaged_events_are_each_counted(read):
    """Damage in every other event leaves the rest alone, over many blocks."""
    entries = [event(f"op_{row}", row, 0.5) for row in range(6000)]
    text = re.sub(r'"name": "op_(\d*[02468])"', r'"name": "op_"\1"', trace_text(entries))

    trace = read(text.encode())

    assert kinds(trace) == {"unescaped_quote": 3000}
    assert names(trace)[:4] == ['op_"0', "op_1", 'op_"2', "op_3"]
    assert len(trace.events) == 6000
    assert (trace.events.start_ns[1:] > trace.events.start_ns[:-1]).all()


def test_blanks_and_brackets_take_no_time_of_their_own(read):
    """Megabytes of nothing are read once: the file is read, and its events are there."""
    inner = WHOLE.index(b"[\n") + 1
    for filler in (b" " * 8_000_000, b"]" * 300_000, b"[" * 300_000, b"1," * 1_000_000):
        trace = read(WHOLE[:inner] + filler + WHOLE[inner:])
        assert names(trace) == NAMES


@pytest.mark.fault("F86")
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "it is empty"),
        (b" \n ", 'no list "traceEvents"'),
        (b"hello", 'no list "traceEvents"'),
        (b'{"schemaVersion": 1}', 'no list "traceEvents"'),
        (b'{"traceEvents": 7}', 'no list "traceEvents"'),
        (b'{"metadata": {"traceEvents": []}}', 'no list "traceEvents"'),
        (b"{" * 100_000, 'no list "traceEvents"'),
        (b"\x00" * 100_000, 'no list "traceEvents"'),
        ("{}".encode("utf-16"), "its encoding is UTF-16"),
    ],
)
def test_a_file_without_events_is_refused(read, data, found):
    """The error names the file, what was found and what to do."""
    with pytest.raises(TraceError, match=found) as raised:
        read(data)

    assert "damaged.json" in str(raised.value)
    assert raised.value.exit_code == 65


@pytest.mark.fault("F86", "S15")
@settings(
    max_examples=3 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    place=st.integers(0, len(WHOLE)),
    removed=st.integers(0, 40),
    added=st.binary(max_size=20)
    | st.sampled_from(
        [b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"},{", b'"}, {"', b"\xff", b"NaN"]
    ),
)
def test_no_mutation_costs_what_stands_before_it(read, place, removed, added):
    """Any change of bytes ends in a trace or a TraceError, with every event before it intact."""
    before = [end for end in ENDS if end <= place]
    try:
        trace = read(WHOLE[:place] + added + WHOLE[place + removed :])
    except TraceError:
        assert not before
        return
    intact = [name for name, end in zip(NAMES, EVENT_ENDS, strict=True) if end < place]
    assert names(trace)[: len(intact)] == intact
