"""The agent converts the profiler windows in its run folder."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from pathlib import Path

import pytest
from by_hand import Program, accounts, adds_up, table
from kineto_traces import operator, write_trace
from servers.running import wait_until

from otel_mlperf import ids, names
from otel_mlperf.agent.lifecycle.run_recovery import deliver_rest
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.agent.window_conversion import TRIES
from otel_mlperf.cli.import_ import import_
from otel_mlperf.journal.profiler_windows import Window, WindowStep, write_window
from otel_mlperf.otlp.endpoint_settings import read_settings
from otel_mlperf.run_files.run_file import RunFile
from otel_mlperf.settings.trace_sampler import make_sampler
from otel_mlperf.store.run_folders import RunFolder

pytestmark = pytest.mark.usefixtures("warm_children")
UNIX = 1_700_000_000_000_000_000
MS = 1_000_000
TRACE = ids.trace_id("0123abcd", 0, "train", 0).to_bytes(16, "big").hex()


def run_of(run_folder):
    """The run, which nobody serves."""
    return RunFolder(run_folder, RunFile(id=uuid.uuid4().hex, name="digits", started_ns=0))


def traces_to(server):
    """The agent's settings that send spans to a receiver."""
    return read_settings({}, "traces", server.url)[0]


def metrics_to(server):
    """Those that send metrics."""
    return read_settings({}, "metrics", server.url)[0]


def of_windows(server):
    """The points that windows come to, as they arrived: name, value, time and rank."""
    mine = [one for one in server.points() if one["name"].startswith("pytorch.profiler.")]
    return [(p["name"], p["value"], p["time_ns"], p["resource"][names.RANK]) for p in mine]


def window_of(program, step, number=0, rank=0):
    """The description of a window in which a step of ``program`` was profiled."""
    return Window(
        run_id=program.meta.run_id, restart=0, rank=rank, world_size=1, pid=1, number=number,
        trace=f"rank{rank}-{number}.pt.trace.json", parent=f"{program.run:016x}",
        steps=[WindowStep("train", 0, 100, f"{step:016x}", TRACE)],
        start=(UNIX, 0), end=(UNIX + 10 * MS + number, 10 * MS + number), activities=["cpu"],
    )  # fmt: skip


def profile(program, run_folder, step, entries, **more):
    """Leaves a window as the recorder does: the trace, and then its description."""
    folder = run_folder / "profiles"
    folder.mkdir(exist_ok=True)
    window = window_of(program, step, **more)
    write_trace(folder / window.trace, entries, base_ns=UNIX)
    return write_window(folder, window)


def layers(count):
    """As many operators inside ``forward``, which is recorded from 2 to 9 ms."""
    return [operator(f"op{number % 7}", 2100 + 2.0 * number, 1.5) for number in range(count)]


def spans(run_folder):
    """The rows of table ``spans``."""
    return table(run_folder, "spans")


def of_spans(run_folder):
    """The accounts of spans, by destination."""
    return accounts(run_folder)["spans"]


def until(agent, condition):
    """Lets the agent look until something has happened."""

    def look():
        agent.tick()
        return condition()

    wait_until(look)


def test_window_becomes_spans_under_its_sections(program, agent_of, run_folder, server):
    """Store and server have the operators under the section that was recorded around them."""
    step = program.step(0)
    profile(program, run_folder, step, layers(5))
    program.stop(20)
    agent_of(program, traces=traces_to(server)).run()

    stored = {row["span_id"]: row for row in spans(run_folder)}
    sent = {span["span_id"]: span for span in server.spans()}
    operators = [row for row in stored.values() if row["kind"] == "event"]
    assert len(operators) == 5
    for row in operators:
        assert stored[row["parent_id"]]["name"] == "forward"
        assert sent[row["span_id"]]["parent_id"] == row["parent_id"]
        assert row["trace_id"] == TRACE == sent[row["span_id"]]["trace_id"]
        assert sent[row["span_id"]]["resource"][names.RANK] == 0
    for account in of_spans(run_folder).values():
        assert account["created"] == program.sections + 5
        assert adds_up(account)
        assert (account["lost"], account["pending"]) == ({}, 0)


def test_events_of_traces_that_the_sampler_leaves_out_are_not_sent(
    program, agent_of, run_folder, server
):
    """The store has them, none is rolled up, and the identity adds up."""
    step = program.step(0)
    profile(program, run_folder, step, layers(40))
    program.stop(20)
    options = {"policy": Policy(max_spans_per_rank=20), "sampler": make_sampler("always_off", 1.0)}
    agent_of(program, traces=traces_to(server), **options).run()

    assert server.spans() == []
    assert len([row for row in spans(run_folder) if row["kind"] == "event"]) == 40
    sent = of_spans(run_folder)["otlp"]
    assert (sent["rolled_up"], sent["unselected"]) == (0, program.sections + 40)
    assert adds_up(sent)


def test_what_is_over_the_budget_is_rolled_up(program, agent_of, run_folder, server):
    """The step's trace has no more spans than allowed; accounts say what became of each event."""
    step = program.step(0)
    profile(program, run_folder, step, layers(1000))
    program.stop(20)
    agent_of(program, traces=traces_to(server), policy=Policy(max_spans_per_rank=40)).run()

    of_step = [span for span in server.spans() if span["trace_id"] == TRACE]
    assert len(of_step) <= 40
    rolled = sum(span["attributes"].get(names.ROLLED_UP, 0) for span in of_step)
    account = of_spans(run_folder)["otlp"]
    assert account["created"] == program.sections + 1000
    assert account["rolled_up"] == rolled >= 900
    assert adds_up(account)
    assert of_spans(run_folder)["store"]["delivered"] == program.sections + 1000


def test_windows_of_other_hosts_are_left_alone(program, agent_of, run_folder):
    """Only the agent that serves the process converts its window."""
    step = program.step(0)
    profile(program, run_folder, step, layers(5), rank=3)
    program.stop(20)
    agent_of(program).run()

    assert {row["kind"] for row in spans(run_folder)} == {"section"}
    assert adds_up(of_spans(run_folder)["store"])


def test_window_is_converted_while_the_program_runs(program, agent_of, run_folder):
    """Nobody has to wait for the end, and the end does not convert it again."""
    step = program.step(0)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    profile(program, run_folder, step, layers(5))
    agent.mark()

    until(agent, lambda: agent._state.windows)

    program.stop(20)
    agent.run()
    assert sum(row["kind"] == "event" for row in spans(run_folder)) == 5
    assert of_spans(run_folder)["store"]["created"] == program.sections + 5


def test_agent_that_dies_has_sent_nothing_twice(program, agent_of, run_folder, server):
    """After the window was logged and not yet in the state, a new agent makes the same requests."""
    step = program.step(0)

    def convert_and_die():
        agent = agent_of(program, traces=traces_to(server))
        agent.tick()
        profile(program, run_folder, step, layers(50))
        agent.mark()
        until(agent, lambda: agent._state.windows)
        agent._sender.drain(20)
        agent._sender.stop()

    convert_and_die()
    before = {span["span_id"] for span in server.spans()}
    program.stop(20)
    agent_of(program, traces=traces_to(server)).run()

    assert len([s for s in server.spans() if s["name"].startswith("op")]) == len(
        [s for s in spans(run_folder) if s["name"].startswith("op") and s["kept"]]
    )
    assert before <= {span["span_id"] for span in server.spans()}
    for account in of_spans(run_folder).values():
        assert account["created"] == program.sections + 50
        assert adds_up(account)
        assert (account["lost"], account["pending"]) == ({}, 0)


def test_window_that_cannot_be_converted_is_lost_and_counted(program, agent_of, run_folder, server):
    """After a few tries its events are lost for a reason, and the agent goes on."""
    step = program.step(0)
    place = profile(program, run_folder, step, layers(3))
    trace = place.with_name("rank0-0.pt.trace.json")
    trace.write_text('no list of events, but {"ph": "X"} and {"ph": "X"}')
    program.stop(20)
    agent_of(program, traces=traces_to(server)).run()

    for account in of_spans(run_folder).values():
        assert account["created"] == program.sections + 2
        assert account["lost"] == {"window_failed": 2}
        assert adds_up(account)
    said = (run_folder / "agent" / "node" / "windows" / "log").read_text()
    assert said.count("rank0-0.pt.trace.json") == TRIES


def test_conversion_that_is_killed_is_done_again(program, agent_of, run_folder):
    """A crash of the process that converts costs a try, not the window."""
    step = program.step(0)
    agent = agent_of(program)
    agent.tick()
    profile(program, run_folder, step, layers(5))
    agent.mark()
    agent.tick()
    os.kill(agent._windows._child.pid, signal.SIGKILL)

    until(agent, lambda: agent._state.windows)

    program.stop(20)
    agent.run()
    account = of_spans(run_folder)["store"]
    assert account["created"] == account["delivered"] == program.sections + 5


@pytest.mark.fault("F28")
def test_end_of_the_agent_does_not_wait_beyond_its_limit(program, agent_of, run_folder):
    """A conversion that takes longer than the agent may is ended; ``recover`` does it later."""
    step = program.step(0)
    profile(program, run_folder, step, layers(5))
    program.stop(20)
    agent_of(program, drain_timeout_s=0.0).run()

    assert {row["kind"] for row in spans(run_folder)} == {"section"}
    assert of_spans(run_folder)["store"]["created"] == program.sections

    deliver_rest(run_of(run_folder), {})

    assert sum(row["kind"] == "event" for row in spans(run_folder)) == 5
    account = of_spans(run_folder)["store"]
    assert account["created"] == account["delivered"] == program.sections + 5


def test_recovered_window_reaches_the_server(program, agent_of, run_folder, server):
    """What ``recover`` converts is sent as the agent would have sent it, and counted."""
    step = program.step(0)
    profile(program, run_folder, step, layers(5))
    program.stop(20)
    agent_of(program, traces=traces_to(server), drain_timeout_s=0.0).run()

    rest = deliver_rest(run_of(run_folder), {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url})

    assert rest.waiting == 0
    assert sum(span["name"].startswith("op") for span in server.spans()) == 5
    account = of_spans(run_folder)["otlp"]
    assert account["created"] == program.sections + 5
    assert adds_up(account)
    assert (account["lost"], account["pending"]) == ({}, 0)


@pytest.mark.slow
def test_full_store_gives_up_windows_first(program, agent_of, run_folder):
    """Over its size the oldest window goes, counted; the newest and the steps stay."""
    agent = agent_of(program)
    step = program.step(0)
    agent.tick()
    for number in range(2):
        entries = [operator(f"op{number} {i}", 2100 + i / 8, 0.1) for i in range(20_000)]
        profile(program, run_folder, step, entries, number=number)
        agent.mark()
        until(agent, lambda number=number: len(agent._state.windows) == number + 1)
    size = sum(part.stat().st_size for part in (run_folder / "tables").rglob("*.parquet"))
    agent._options = agent._options.__class__(policy=Policy(), max_store_bytes=size * 2 // 3)
    agent.flush(time.time_ns())
    program.stop(20)
    agent.run()

    account = of_spans(run_folder)["store"]
    assert account["lost"] == {"store_full": 20_000}
    assert account["created"] == program.sections + 40_000
    assert adds_up(account)
    kept = [row["name"] for row in spans(run_folder) if row["kind"] == "event"]
    assert len(kept) == 20_000
    assert all(name.startswith("op1 ") for name in kept)


def test_two_ranks_of_a_host_have_their_own_windows(journals, run_folder, agent_of):
    """Each window counts for the rank that made it."""
    ranks = [Program(journals, run_folder, rank, world=2) for rank in (0, 1)]
    for rank, program in enumerate(ranks):
        step = program.step(0)
        profile(program, run_folder, step, layers(3 + rank), rank=rank)
        program.stop(20)
    agent_of(*ranks).run()

    of_rank = [row["rank"] for row in spans(run_folder) if row["kind"] == "event"]
    assert sorted(of_rank) == [0, 0, 0, 1, 1, 1, 1]
    for program in ranks:
        program.journal.release()


def test_results_are_removed_once_a_state_has_them(program, agent_of, run_folder, server):
    """The file with the requests of a window is gone when the agent is."""
    step = program.step(0)
    profile(program, run_folder, step, layers(5))
    program.stop(20)
    agent_of(program, traces=traces_to(server)).run()

    left = {path.name for path in Path(run_folder, "agent", "node", "windows").iterdir()}
    assert left <= {"log"}


def test_import_by_hand_changes_nothing(program, agent_of, run_folder, server):
    """A window that the agent has converted is the same when somebody imports its trace."""
    facts = {"id": program.meta.run_id, "name": "digits", "started_ns": UNIX}
    (run_folder / "run.json").write_text(json.dumps(facts))
    step = program.step(0)
    place = profile(program, run_folder, step, layers(3000))
    program.stop(20)
    agent_of(program).run()
    before = {row["span_id"]: row for row in spans(run_folder)}

    import_([place.with_name("rank0-0.pt.trace.json")], str(run_folder), server.url)

    assert {row["span_id"]: row for row in spans(run_folder)} == before
    sent = {key for key, row in before.items() if row["kind"] != "section" and row["kept"]}
    assert {span["span_id"] for span in server.spans()} == sent


def expected_of(events, end_ns):
    """The points of a window with operators of 1.5 µs, 2 µs apart, on rank 0."""
    length, busy = 2.0 * (events - 1) + 1.5, 1.5 * events
    return [
        (names.WINDOW_EVENTS.name, events, end_ns, 0),
        (names.WINDOW_COMPLETENESS.name, 1.0, end_ns, 0),
        (names.WINDOW_HOST_BUSY.name, pytest.approx(busy / length), end_ns, 0),
        (names.WINDOW_HOST_IDLE.name, pytest.approx(1 - busy / length), end_ns, 0),
    ]


def test_each_window_is_a_point_at_its_time(program, agent_of, run_folder, server):
    """Two windows read at once are two points of each series, none sent twice."""
    step = program.step(0)
    for number in range(2):
        profile(program, run_folder, step, layers(5 + number), number=number)
    program.stop(20)
    agent_of(program, metrics=metrics_to(server)).run()

    found = of_windows(server)
    assert found == [*expected_of(5, UNIX + 10 * MS), *expected_of(6, UNIX + 10 * MS + 1)]
    account = json.loads((run_folder / "accounting" / "node.json").read_text())["metrics"]["otlp"]
    assert account["created"] == account["delivered"]


def test_recovered_window_is_a_point_too(program, agent_of, run_folder, server):
    """What nobody had read when the run ended is measured when it is recovered."""
    step = program.step(0)
    profile(program, run_folder, step, layers(5))
    program.stop(20)
    agent_of(program, metrics=metrics_to(server), drain_timeout_s=0.0).run()
    assert of_windows(server) == []

    deliver_rest(run_of(run_folder), {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url})

    assert of_windows(server) == expected_of(5, UNIX + 10 * MS)


def test_new_agent_makes_the_same_points_of_its_log(program, agent_of, run_folder, server):
    """An agent that dies after it has sent them leaves no gap, and no second point."""
    step = program.step(0)

    def convert_and_die():
        agent = agent_of(program, metrics=metrics_to(server))
        agent.tick()
        profile(program, run_folder, step, layers(5))
        agent.mark()
        until(agent, lambda: agent._state.windows)
        agent._sender.drain(20)
        agent._sender.stop()

    convert_and_die()
    before = of_windows(server)
    program.stop(20)
    agent_of(program, metrics=metrics_to(server)).run()

    assert of_windows(server) == before == expected_of(5, UNIX + 10 * MS)
