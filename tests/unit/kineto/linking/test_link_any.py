"""What holds of the links of any trace, whatever it says."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kineto_traces import BASE_NS, event, flow, write_trace

from otel_mlperf.kineto.linking.collectives import collectives
from otel_mlperf.kineto.linking.link import Place, link
from otel_mlperf.kineto.linking.sections import Sections
from otel_mlperf.kineto.reading.trace_reader import read_trace

_CATEGORIES = (
    *("cpu_op", "user_annotation", "python_function", "cuda_runtime", "kernel", "gpu_memcpy"),
    *("gpu_user_annotation", "Trace", "overhead", "another"),
)
_NAMES = ("forward", "train.step", "ProfilerStep#1", "record_param_comms", "nccl:all_reduce", "x")
_SMALL = st.integers(-1, 4)


def _maybe(**choices):
    return st.fixed_dictionaries({}, optional=choices)


_EVENTS = st.builds(
    lambda name, start, spent, category, tid, args: event(
        name, start, spent, category=category, tid=tid, **args
    ),
    st.sampled_from(_NAMES),
    st.integers(0, 30),
    st.integers(-3, 30),
    st.sampled_from(_CATEGORIES),
    st.integers(1, 3),
    _maybe(
        **{
            "External id": _SMALL,
            "correlation": _SMALL,
            "Sequence number": _SMALL,
            "Fwd thread id": _SMALL,
            "stream": _SMALL,
        }
    ),
)
_FLOWS = st.builds(
    lambda phase, number, time, category, tid: flow(
        phase, number, time, category=category, tid=tid
    ),
    st.sampled_from("sf"),
    _SMALL,
    st.integers(0, 30),
    st.sampled_from(["ac2g", "fwdbwd"]),
    st.integers(1, 3),
)
_SECTIONS = st.lists(
    st.tuples(
        st.sampled_from(_NAMES), st.integers(0, 30), st.integers(0, 30), st.integers(-1, 3), _SMALL
    ),
    max_size=6,
)


@given(st.lists(st.one_of(_EVENTS, _FLOWS), max_size=25), _SECTIONS)
def test_links_are_sound(entries, rows) -> None:
    """Parents are of the host and end in a root; nobody has a section and a parent."""
    with TemporaryDirectory() as folder:
        trace = read_trace(write_trace(Path(folder, "t.json"), entries))
        sections = _sections(rows)
        links = link(trace, sections)
        known = collectives(trace, links)

    has_parent = links.parent >= 0
    assert not links.is_device[links.parent[has_parent]].any()
    assert (links.place[links.parent[has_parent]] != Place.TWIN).all()
    assert all(_depth(links.parent, row) < len(links.parent) for row in range(len(links.parent)))
    assert not (has_parent & (links.section >= 0)).any()
    assert (links.launch[~links.is_device] == -1).all()
    assert ((links.place == Place.NESTED) == (has_parent & ~links.is_device)).all()
    twins = links.section[links.place == Place.TWIN]
    names = [trace.names[name] for name in trace.events.name[links.place == Place.TWIN]]
    assert all(
        name in (sections.name[twin], "ProfilerStep#1")
        for name, twin in zip(names, twins.tolist(), strict=True)
    )
    assert links.step.max(initial=-1) < len(links.steps)
    assert links.section.max(initial=-1) < len(sections)
    assert all(0 < count <= len(trace.events) for count in links.orphans.values())
    assert set(known) <= set(range(len(trace.events)))


def _depth(parent, row):
    steps = 0
    while parent[row] >= 0 and steps < len(parent):
        row, steps = parent[row], steps + 1
    return steps


def _sections(rows):
    begin = np.array([BASE_NS + 1000 * start for _, start, *_ in rows], np.int64)
    return Sections(
        span_id=np.arange(1, len(rows) + 1, dtype=np.uint64),
        parent_id=np.zeros(len(rows), np.uint64),
        trace_id=np.array([[row[4] % 4] * 16 for row in rows], np.uint8).reshape(-1, 16),
        start_ns=begin,
        end_ns=begin + np.array([1000 * row[2] for row in rows], np.int64),
        thread=np.array([row[3] for row in rows], np.int64),
        is_step=np.array([row[0] == "train.step" for row in rows], np.bool_),
        name=[row[0] for row in rows],
    )
