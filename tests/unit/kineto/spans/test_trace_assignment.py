"""The ids of a trace file's events are distinct and follow from the file."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.kineto.spans.trace_assignment import roll_up_ids, span_ids, trace_id

digests = st.text("0123456789abcdef", min_size=64, max_size=64)
places = st.lists(st.integers(0, (1 << 61) - 1), min_size=1, max_size=50, unique=True)


@given(digest=digests, found=places)
def test_ids_of_a_file_differ_and_none_is_zero(digest, found):
    """Events and roll-ups of one file have as many ids as places, and never the id of no span."""
    where = np.array(found, np.int64)

    ids = [*span_ids(digest, where).tolist(), *roll_up_ids(digest, where).tolist()]

    assert len(set(ids)) == 2 * len(found)
    assert 0 not in ids


def test_ids_of_a_million_events_differ():
    """A large file's events, 100 bytes apart, have a million ids."""
    where = np.arange(1_000_000) * 100

    assert len(np.unique(span_ids("ab", where))) == 1_000_000


@given(first=digests, second=digests)
def test_ids_follow_from_the_file(first, second):
    """The same file gives the same ids, another one others."""
    where = np.arange(0, 1000, 10)

    assert span_ids(first, where).tolist() == span_ids(first, where).tolist()
    if first != second:
        assert not set(span_ids(first, where)) & set(span_ids(second, where))
        assert trace_id(first, "outside") != trace_id(second, "outside")
