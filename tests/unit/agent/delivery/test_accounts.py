"""Every destination's account contains the fate of each item, in any form."""

from __future__ import annotations

import json

import pytest
from by_hand import accounts, adds_up

from otel_mlperf import names
from otel_mlperf.agent.delivery.accounts import Accounts
from otel_mlperf.agent.delivery.destination import Batch, Delivered, Destination
from otel_mlperf.agent.model.agent_state import AgentState
from otel_mlperf.agent.model.events import WindowConverted
from otel_mlperf.agent.model.sampling import Policy

KEEPER = '''
"""Keeps what it is given, as JSON."""

from pathlib import Path

import msgspec

from otel_mlperf.agent.delivery.destination import Delivered, Destination


class Keeper(Destination):
    name, signals = "keeper", ("spans", "metrics")

    def __init__(self, path):
        self._path = path

    def accept(self, batch):
        with self._path.open("ab") as file:
            for item in [*batch.spans, *batch.points]:
                file.write(msgspec.json.encode(item) + b"\\n")
        return Delivered()


def make(site):
    return Keeper(Path(site.options.environ["KEEPER_FILE"]))
'''


class Tracker(Destination):
    """Takes lists."""

    name, signals = "tracker", ("spans", "metrics")

    def accept(self, batch: Batch) -> Delivered:
        raise AssertionError(batch)


class Folder(Tracker):
    """Waits in the log, as the run folder does."""

    name, signals, buffered_in_wal = "store", ("spans",), True


class Server(Tracker):
    """Takes encoded requests."""

    name, form = "otlp", "otlp"


@pytest.fixture
def items(program, agent_of, install, tmp_path):
    """Runs an agent on what the program has recorded; what came to a destination that takes lists.

    As pairs of spans and points.
    """

    def run(**options):
        install("keeper", KEEPER, keeper="make")
        file = tmp_path / "kept.jsonl"
        agent_of(program, environ={"KEEPER_FILE": str(file)}, **options).run()
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        return [r for r in rows if "span_id" in r], [r for r in rows if "instrument" in r]

    return run


def spans_of(event, *destinations):
    """The accounts of spans after one profiler window, by destination."""
    made = Accounts(AgentState(), destinations)
    made.converted(event)
    waiting = {}
    if not event.lost:  # the requests of the window, which the outbox would say
        waiting = {"spans/otlp": event.events - event.rolled_up}
    return made.report(waiting)["spans"]


def test_events_of_a_window_have_one_fate_at_each_destination() -> None:
    """Stored by the conversion; sent or rolled up as requests; measured where there are lists."""
    requests = [(60, 1), (40, 1)]
    event = WindowConverted("0.window", "", events=1000, rolled_up=900, requests=requests)
    found = spans_of(event, Folder(), Server(), Tracker())

    assert {name: account["created"] for name, account in found.items()} == {
        "store": 1000,
        "otlp": 1000,
        "tracker": 1000,
    }
    assert found["store"]["delivered"] == 1000
    assert (found["otlp"]["rolled_up"], found["otlp"]["pending"]) == (900, 100)
    assert (found["tracker"]["unselected"], found["tracker"]["rolled_up"]) == (1000, 0)
    assert all(map(adds_up, found.values()))


def test_events_of_a_window_that_failed_are_lost_everywhere() -> None:
    """Nobody has them, whatever form he takes."""
    event = WindowConverted("0.window", "", events=70, lost="window_failed")
    found = spans_of(event, Folder(), Server(), Tracker())

    for account in found.values():
        assert account["lost"] == {"window_failed": 70}
        assert account["unselected"] == account["rolled_up"] == account["delivered"] == 0
        assert adds_up(account)


def test_lists_have_rollups_that_count_what_the_account_says(program, run_folder, items) -> None:
    """Over budget and under no budget: as many rolled up and unselected as at the run folder."""
    step = program.begin_step(0)
    for i in range(100):
        program.section("op", i, i + 0.5, parent=step, root=step)
    program.end_step(step, 0, 101)
    for i in range(20):
        program.step(200 + i * 10)
    program.stop(500)
    spans, _ = items(policy=Policy(max_spans_per_rank=40))

    mine, store = accounts(run_folder)["spans"]["keeper"], accounts(run_folder)["spans"]["store"]
    rolled = sum(
        span["attributes"][names.ROLLED_UP] for span in spans if span.get("kind") == "rollup"
    )
    assert mine == store
    assert mine["rolled_up"] == rolled > 0
    assert mine["delivered"] == sum("kind" not in span for span in spans)
    # Of 21 steps the first five are kept; the others are three sections each.
    assert mine["unselected"] == 16 * 3
    assert mine["created"] == program.sections
    assert adds_up(mine)


@pytest.mark.parametrize("explicit", [False, True])
def test_histogram_is_one_item_however_many_buckets_it_has(
    program, run_folder, items, explicit
) -> None:
    """Lists have its count, sum and extremes; the account counts points, and no buckets."""
    for i in range(10):
        program.step(i * 40, 10.0 + i)
    program.stop(500)
    _, points = items(explicit=explicit)

    account = accounts(run_folder)["metrics"]["keeper"]
    assert account["created"] == account["delivered"] == len(points)
    assert adds_up(account)
    steps = [p for p in points if p["name"] == names.STEP_DURATION.name]
    assert {p["instrument"] for p in steps} == {"histogram"}
    last = max(steps, key=lambda p: p["time_ns"])
    assert last["count"] == 10
    assert last["value"] == pytest.approx(0.145)
    assert (last["min"], last["max"]) == (pytest.approx(0.010), pytest.approx(0.019))
