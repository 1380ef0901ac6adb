"""A server gets of each span what the run folder has of it."""

from __future__ import annotations

import json

import pytest
from by_hand import MS, Program, agent_folder, table
from fault_server import plain_spans
from otlp_requests import spans

from otel_mlperf import names
from otel_mlperf.agent.delivery.destination import Batch, TryLater
from otel_mlperf.agent.delivery.otlp_destination import OtlpDestination
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.journal.layout import FIRST_PROGRAM_MARK, Kind
from otel_mlperf.otlp.endpoint_settings import read_settings
from otel_mlperf.otlp.span_content import MOST_MARKS
from otel_mlperf.replay.span_requests import requests
from otel_mlperf.run_files.run_file import write_run_file
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store


def test_failed_section_without_words_is_sent_as_failed(
    program, agent_of, run_folder, server
) -> None:
    """The flag of the row says that it failed, even where what was recorded of it was lost."""
    step = program.begin_step(0)
    program.section("forward", 2, 5, parent=step, root=step, error=True)
    words = {"e": ["ValueError", "no such layer", ""]}
    program.section("backward", 5, 8, parent=step, root=step, error=True, payload=words)
    program.end_step(step, 0, 10)
    program.stop(20)
    agent_of(program, traces=read_settings({}, "traces", server.url)[0]).run()

    stored = {span["name"]: span["status"] for span in table(run_folder, "spans")}
    sent = {span["name"]: span["error"] for span in server.spans()}
    assert stored == {
        "forward": "error",
        "backward": "error",
        "train.step": "unset",
        "run": "unset",
    }
    assert sent == {
        "forward": "",
        "backward": "ValueError: no such layer",
        "train.step": None,
        "run": None,
    }


def test_links_of_the_program_are_sent(program, agent_of, run_folder, server) -> None:
    """What a section was linked to through the OpenTelemetry API stands in both places."""
    linked = {"l": [[5, (1 << 64) - 1, 1 << 63, 0x200, {"why": "batch"}]]}
    program.section("forward", 2, 5, payload=linked)
    program.stop(20)
    agent_of(program, traces=read_settings({}, "traces", server.url)[0]).run()

    expected = ["0000000000000005ffffffffffffffff", "8000000000000000"]
    stored = {span["name"]: json.loads(span["links"]) for span in table(run_folder, "spans")}
    sent = {span["name"]: span for span in server.spans()}
    assert stored == {"forward": [[*expected, {"why": "batch"}, 0x300]], "run": []}
    assert sent["forward"]["links"] == [expected]
    assert sent["forward"]["link_fields"] == [[expected[0], 0x300, {"why": "batch"}]]


def mark(program, at, name, number=103):
    entry = program.name(name, phase="validate")
    program.journal.put(int(at * MS), 0, FIRST_PROGRAM_MARK, number, 0, 0, entry, Kind.MARK)


def test_marks_of_the_program_are_events_of_its_run(program, agent_of, run_folder, server) -> None:
    """At their time, with their step; a replay says the same."""
    mark(program, 7, "lr halved")
    mark(program, 9, "frozen", number=104)
    program.step(10)
    program.stop(30)
    agent_of(program, traces=read_settings({}, "traces", server.url)[0]).run()

    begin = program.meta.unix_ns
    sent = {span["name"]: span["points"] for span in server.spans()}
    where = {names.ML_PHASE: "validate"}
    assert sent.pop("run") == [
        [begin + 7 * MS, "lr halved", {names.TRAINING_STEP: 103} | where],
        [begin + 9 * MS, "frozen", {names.TRAINING_STEP: 104} | where],
    ]
    assert not any(sent.values())
    assert replayed(run_folder) == sorted(server.spans(), key=str)


def test_of_many_marks_a_span_has_as_many_as_it_may(program, agent_of, run_folder, server) -> None:
    """The first ones, and how many more there were; a replay says the same."""
    for i in range(MOST_MARKS + 5):
        mark(program, i, "again", number=i)
    program.stop(300)
    agent_of(program, traces=read_settings({}, "traces", server.url)[0]).run()

    (run,) = server.spans()
    steps = [about[names.TRAINING_STEP] for _, _, about in run["points"]]
    assert (steps, run["events_left_out"]) == ([*range(MOST_MARKS)], 5)
    assert replayed(run_folder) == [run]


def test_marks_of_a_killed_program_are_told(journals, run_folder, server) -> None:
    """Of its run, which never ended, as of one that did."""
    program = Program(journals, run_folder)
    program.open("run", 0, span=program.run)
    mark(program, 7, "lr halved")
    program.journal.release()
    options = Options(policy=Policy(), traces=read_settings({}, "traces", server.url)[0])
    Agent(agent_folder(program.meta), Tail(journals), options).run()

    told = {span["name"]: span["events"] for span in server.spans()}
    assert "lr halved" in told["run"]


def replayed(run_folder):
    """The spans of a stored run as a replay sends them."""
    write_run_file(str(run_folder), {"id": "0123abcd", "name": "digits", "started_ns": 0})
    run = read_run(run_folder)
    bodies = [body for _, body in requests(run, Store(run.path))]
    spans = [span for body in bodies for span in plain_spans(body)]
    return sorted(json.loads(json.dumps(spans)), key=str)


def test_section_open_at_a_death_is_sent_as_failed(journals, run_folder, server) -> None:
    """What was never left did not end well; nothing was recorded that could say more."""
    program = Program(journals, run_folder)
    program.open("checkpoint.save", 3)
    program.journal.release()
    traces = read_settings({}, "traces", server.url)[0]
    Agent(agent_folder(program.meta), Tail(journals), Options(policy=Policy(), traces=traces)).run()

    (span,) = (span for span in server.spans() if span["name"] == "checkpoint.save")
    assert span["error"] == names.INTERRUPTED_MESSAGE
    assert span["attributes"][names.INTERRUPTED] is True


@pytest.mark.fault("F05")
@pytest.mark.parametrize("code", [401, 403])
def test_server_that_does_not_let_us_in_is_asked_again_twice_a_minute(server, code) -> None:
    """Nothing is given up: a key may be renewed; and a server is not stormed meanwhile."""
    traces, _ = read_settings({}, "traces", server.url)
    destination = OtlpDestination({"spans": traces})
    server.mode("status", code=code, times=1)
    batch = Batch(number=1, signal="spans", items=3, otlp=spans(3))

    refused = destination.accept(batch)
    taken = destination.accept(batch)
    destination.close("spans")

    assert isinstance(refused, TryLater)
    assert refused.after_s == 30.0
    assert taken.lost == {}
    assert len(server.spans()) == 3
