"""Numbers become the text that Python would make of them."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.store import text_columns

U64 = st.integers(0, 2**64 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(found=st.lists(U64, max_size=20))
def test_span_ids_are_hexadecimal(found):
    """Sixteen digits each, and nothing for no span."""
    text = text_columns.span_hex(np.array(found, np.uint64)).to_pylist()

    assert text == [f"{one:016x}" if one else "" for one in found]


@given(found=st.lists(st.binary(min_size=16, max_size=16), max_size=20))
def test_trace_ids_are_hexadecimal(found):
    """Thirty-two digits each."""
    data = np.frombuffer(b"".join(found), np.uint8).reshape(-1, 16)

    assert text_columns.hex_text(data).to_pylist() == [one.hex() for one in found]


@given(rows=st.lists(st.tuples(INT64, INT64), max_size=20))
def test_objects_hold_constant_part_and_numbers(rows):
    """Each row is JSON with the words that all have and the numbers that are its own."""
    numbers = {
        "a.b": np.array([first for first, _ in rows], np.int64),
        'c"d': np.array([second for _, second in rows], np.int64),
    }
    inner = text_columns.same('"kind": "kernel"', len(rows))

    found = text_columns.json_text(
        {json.dumps(key)[1:-1]: column for key, column in numbers.items()}, inner
    ).to_pylist()

    assert [json.loads(one) for one in found] == [
        {"kind": "kernel", "a.b": first, 'c"d': second} for first, second in rows
    ]


def test_words_and_numbers_are_taken_by_index():
    """Few words and many rows, with nothing where nothing is known."""
    index = np.array([1, 0, 1], np.int32)

    assert text_columns.words(["a", "ü"], index).to_pylist() == ["ü", "a", "ü"]
    assert text_columns.known([None, 7], index).to_pylist() == [7, None, 7]
    assert text_columns.where(index == 1, np.array([5, 6, 7])).to_pylist() == [5, None, 7]
