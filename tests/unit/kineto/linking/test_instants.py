"""Operators without duration are inside what ran them, in times of whole microseconds."""

from __future__ import annotations

import numpy as np
import pytest
from kineto_traces import event, operator, real_traces, write_trace

from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.reading.trace_reader import read_trace


@pytest.fixture
def parents(tmp_path):
    """The name of what is above each event of a trace of these entries, by its own name."""

    def build(*entries):
        trace = read_trace(write_trace(tmp_path / "t.json", entries))
        names = [trace.names[name] for name in trace.events.name.tolist()] + [None]
        return {names[row]: names[above] for row, above in enumerate(link(trace).parent.tolist())}

    return build


def test_operator_is_not_inside_one_with_a_higher_number(parents) -> None:
    """It began before the one that begins at its moment, which is around it by time alone."""
    found = parents(
        operator("outer", 0, 20, external=1),
        operator("instant", 10, 0, external=2),
        operator("next", 10, 5, external=3),
        operator("inner", 10, 0, external=4),
    )

    assert found == {"outer": None, "instant": "outer", "next": "outer", "inner": "next"}


def test_operator_is_inside_what_ends_where_it_is_seen_inside_it_elsewhere(parents) -> None:
    """The innermost of what ends there, of those that are around such a one in other places."""
    found = parents(
        operator("aten::t", 0, 9, external=1),
        operator("aten::transpose", 1, 8, external=2),
        operator("aten::as_strided", 2, 4, external=3),
        operator("aten::t", 10, 10, external=4),
        operator("aten::transpose", 12, 8, external=5),
        operator("aten::as_strided", 20, 0, external=6),
        operator("aten::mul", 20, 5, external=7),
    )

    assert found["aten::as_strided"] == "aten::transpose"


def test_operator_after_what_ends_is_its_neighbour(parents) -> None:
    """Nothing in the file says that one of them calls the other."""
    found = parents(
        operator("outer", 0, 30, external=1),
        operator("aten::mm", 0, 10, external=2),
        operator("aten::detach", 10, 0, external=3),
    )

    assert found["aten::detach"] == "outer"


def test_without_numbers_the_time_decides(parents) -> None:
    """As ever: inside what begins there."""
    found = parents(operator("outer", 0, 20), operator("instant", 10, 0), operator("next", 10, 5))

    assert found["instant"] == "next"


def test_a_moment_of_many_levels_is_no_search(parents) -> None:
    """Thousands that begin together, with numbers in the wrong order."""
    many = [event(f"op{at}", 10, 5000 - at, **{"External id": 5000 - at}) for at in range(3000)]

    found = parents(*many, operator("instant", 10, 0, external=1))

    assert found["instant"].startswith("op")


_EXACT = ("v100_resnet_ns_timestamps", "h100_qwen_0_5b_with_python_functions", "none")


@pytest.mark.parametrize("path", [path for path in real_traces() if path.id in _EXACT])
def test_microseconds_tell_nearly_what_nanoseconds_do(path) -> None:
    """A trace in nanoseconds, cut to microseconds: of its operators 99 % stay where they are."""
    trace = read_trace(path)
    is_operator = find_roles(trace) == Role.OPERATOR
    exact = Forest(link(trace).around).nearest(is_operator)
    events = trace.events
    end = (events.start_ns + events.duration_ns) // 1000 * 1000
    events.start_ns //= 1000
    events.start_ns *= 1000
    events.duration_ns = end - events.start_ns
    empty = is_operator & (events.duration_ns == 0)

    cut = Forest(link(trace).around).nearest(is_operator)

    assert int(empty.sum()) > 500
    assert np.mean(cut[is_operator] == exact[is_operator]) > 0.99
