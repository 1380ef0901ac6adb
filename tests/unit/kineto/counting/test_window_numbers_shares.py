"""The shares of a window follow from its numbers."""

from __future__ import annotations

import pytest
from kineto_traces import PID, event, kernel, launch, operator, real_traces, write_trace

from otel_mlperf import names
from otel_mlperf.kineto.counting.window_numbers import count, find_figures
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

DEVICE = {
    names.WINDOW_DEVICE_BUSY,
    names.WINDOW_DEVICE_IDLE,
    names.WINDOW_DEVICE_COMMUNICATION,
    names.WINDOW_DEVICE_EXPOSED,
}
HOST = {
    names.WINDOW_HOST_BUSY,
    names.WINDOW_HOST_IDLE,
    names.WINDOW_HOST_COMMUNICATION,
    names.WINDOW_HOST_EXPOSED,
}


def figures(path):
    """The points of a trace by name and device, and its numbers."""
    trace = read_trace(path)
    numbers = count(trace, link(trace))
    found = {
        (name, labels.get(names.DEVICE_INDEX)): value
        for name, labels, value in find_figures(trace, numbers)
    }
    return found, numbers


def of_entries(folder, *entries):
    """The points of a trace that is written here."""
    return figures(write_trace(folder / "t.json", entries))[0]


def test_each_device_has_its_own_shares(tmp_path):
    """Of a window of 100 µs: what ran, what did not, and communication with nothing beside it."""
    found = of_entries(
        tmp_path,
        operator("aten::mm", 0, 100, external=1),
        launch(1, 1, 1),
        launch(3, 1, 2),
        launch(5, 1, 3),
        kernel("gemm", 10, 40, 1),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 30, 40, 2, stream=9),
        kernel("gemm", 20, 5, 3, device=1),
    )

    assert found == {
        (names.WINDOW_EVENTS.name, None): 7,
        (names.WINDOW_COMPLETENESS.name, None): 1.0,
        (names.WINDOW_DEVICE_BUSY.name, "0"): 0.6,
        (names.WINDOW_DEVICE_IDLE.name, "0"): 0.4,
        (names.WINDOW_DEVICE_COMMUNICATION.name, "0"): 0.4,
        (names.WINDOW_DEVICE_EXPOSED.name, "0"): 0.2,
        (names.WINDOW_DEVICE_BUSY.name, "1"): 0.05,
        (names.WINDOW_DEVICE_IDLE.name, "1"): 0.95,
        (names.WINDOW_DEVICE_COMMUNICATION.name, "1"): 0,
        (names.WINDOW_DEVICE_EXPOSED.name, "1"): 0,
    }


def test_without_a_device_the_host_has_shares(tmp_path):
    """Operators of all threads, and collectives; that one is asked for is no work beside it."""
    found = of_entries(
        tmp_path,
        operator("aten::mm", 0, 30),
        operator("aten::addmm", 10, 10),
        operator("aten::relu", 20, 20, tid=PID + 1),
        operator("c10d::allreduce_", 50, 10),
        event("gloo:all_reduce", 30, 40, category="user_annotation", tid=PID + 2),
        operator("aten::add", 95, 5),
    )

    assert found == {
        (names.WINDOW_EVENTS.name, None): 6,
        (names.WINDOW_COMPLETENESS.name, None): 1.0,
        (names.WINDOW_HOST_BUSY.name, None): 0.55,
        (names.WINDOW_HOST_IDLE.name, None): 0.45,
        (names.WINDOW_HOST_COMMUNICATION.name, None): 0.4,
        (names.WINDOW_HOST_EXPOSED.name, None): 0.3,
    }


def test_what_is_not_known_is_absent(tmp_path):
    """One process communicates with nobody; without operators nothing is said of the host."""
    alone = of_entries(tmp_path, operator("aten::mm", 0, 30))
    quiet = of_entries(tmp_path, event("validate", 0, 30, category="user_annotation"))

    assert {name for name, _ in alone} == {
        names.WINDOW_EVENTS.name,
        names.WINDOW_COMPLETENESS.name,
        names.WINDOW_HOST_BUSY.name,
        names.WINDOW_HOST_IDLE.name,
    }
    assert quiet == {
        (names.WINDOW_EVENTS.name, None): 1,
        (names.WINDOW_COMPLETENESS.name, None): 1.0,
    }


@pytest.mark.parametrize("path", real_traces())
def test_shares_of_a_real_trace_are_those_of_its_streams(path):
    """Busy and idle make one; nothing exposed is longer than what it is a part of."""
    found, numbers = figures(path)

    kinds = DEVICE if numbers.devices else HOST
    of_all = {names.WINDOW_EVENTS.name, names.WINDOW_COMPLETENESS.name}
    assert {name for name, _ in found} <= of_all | {one.name for one in kinds}
    for one in numbers.devices:
        busy, idle, talk, exposed = (
            found[metric.name, str(one.device)]
            for metric in (
                names.WINDOW_DEVICE_BUSY, names.WINDOW_DEVICE_IDLE,
                names.WINDOW_DEVICE_COMMUNICATION, names.WINDOW_DEVICE_EXPOSED,
            )
        )  # fmt: skip
        assert busy * one.window_ns == pytest.approx(one.busy_ns)
        assert busy + idle == pytest.approx(1)
        assert exposed <= talk <= busy
