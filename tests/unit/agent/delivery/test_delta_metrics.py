"""Deltas at the server add up to the truth through outages, kills and replays."""

from __future__ import annotations

import time
from collections import defaultdict
from types import SimpleNamespace

import pytest
from by_hand import accounts, adds_up

from otel_mlperf import names
from otel_mlperf.agent.intake import event_queue
from otel_mlperf.otlp.endpoint_settings import read_settings

DELTA = 1
ENOUGH_S = 30


@pytest.fixture
def options(server):
    """Of an agent that sends deltas to a server after each mark."""
    metrics, _ = read_settings({}, "metrics", server.url)
    return {"metrics": metrics, "temporality": "delta", "metrics_ns": 1, "metrics_often_ns": 1}


def deltas(server):
    """The points of each series, in the order in which they were accepted."""
    found = defaultdict(list)
    for point in server.points():
        if point["temporality"] == DELTA:
            instance = point["resource"]["service.instance.id"]
            labels = tuple(sorted(point["attributes"].items()))
            found[instance, point["name"], labels].append(point)
    return found


def look(agent, program, first, count):
    """``count`` more steps, and a mark after them."""
    for number in range(first, first + count):
        program.step(number * 10)
    agent.tick()
    agent.mark()


@pytest.mark.parametrize("is_sent", [True, False])
def test_sums_of_deltas_are_the_totals(program, agent_of, run_folder, server, options, is_sent):
    """Agents are killed before and after a state was written, and the server refuses for a while.

    What the first agents made is delivered before the next one replays it, or is not.
    """
    first = agent_of(program, **options)
    look(first, program, 0, 7)
    look(first, program, 7, 4)
    first.flush(time.time_ns())
    server.mode("status", code=503, times=2)
    look(first, program, 11, 5)
    if is_sent:
        assert first._sender.drain(ENOUGH_S)
    first._sender.stop()
    del first
    second = agent_of(program, **options)
    look(second, program, 16, 3)
    if is_sent:
        assert second._sender.drain(ENOUGH_S)
    second._sender.stop()
    del second
    program.stop(1000)
    agent_of(program, **options).run()

    found = deltas(server)
    steps = [points for key, points in found.items() if key[1] == names.STEPS.name]
    lasted = [points for key, points in found.items() if key[1] == names.STEP_DURATION.name]
    assert [sum(point["value"] for point in points) for points in steps] == [19]
    assert [sum(point["count"] for point in points) for points in lasted] == [19]
    assert sum(point["value"] for point in lasted[0]) == pytest.approx(0.19)
    for points in found.values():
        starts = [point["start_ns"] for point in points[1:]]
        assert starts == [point["time_ns"] for point in points[:-1]]
    account = accounts(run_folder)["metrics"]["otlp"]
    assert adds_up(account)
    assert not account["lost"]


def test_lost_batch_is_in_no_later_delta(program, agent_of, run_folder, server, options):
    """Its points are counted as lost, and the sum lacks exactly what they said."""
    agent = agent_of(program, **options)
    look(agent, program, 0, 7)
    assert agent._sender.drain(ENOUGH_S)
    server.mode("poison", name=names.STEPS.name)
    look(agent, program, 7, 4)
    assert agent._sender.drain(ENOUGH_S)
    server.mode("ok")
    look(agent, program, 11, 5)
    program.stop(1000)
    agent.run()

    (steps,) = (points for key, points in deltas(server).items() if key[1] == names.STEPS.name)
    assert sum(point["value"] for point in steps) == 7 + 5
    assert sum(accounts(run_folder)["metrics"]["otlp"]["lost"].values()) == 1


def test_exports_at_the_same_time_are_a_millisecond_apart(
    program, agent_of, server, options, monkeypatch
):
    """Prometheus refuses a whole request for two points of a series in one millisecond."""
    now_ns = time.time_ns()
    clock = SimpleNamespace(monotonic_ns=time.monotonic_ns, time_ns=lambda: now_ns)
    monkeypatch.setattr(event_queue, "time", clock)
    agent = agent_of(program, **options)
    look(agent, program, 0, 7)
    for number in range(7, 11):
        program.step(number * 10)
    program.stop(1000)
    agent.run()

    found = deltas(server)
    times_ms = [[point["time_ns"] // 10**6 for point in points] for points in found.values()]
    assert max(map(len, times_ms)) > 1
    assert all(len(set(times)) == len(times) for times in times_ms)
    steps = [points for key, points in found.items() if key[1] == names.STEPS.name]
    assert sum(point["value"] for points in steps for point in points) == 11
