"""Does a server get of each span what the run folder has of it?"""

from __future__ import annotations

import json

import pytest
from by_hand import Program, table
from otlp_requests import spans

from otel_mlperf import names
from otel_mlperf.agent.delivery.destination import Batch, TryLater
from otel_mlperf.agent.delivery.otlp_destination import OtlpDestination
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.otlp.endpoint_settings import read_settings


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
    assert sent == {"forward": "", "backward": "no such layer", "train.step": None, "run": None}


def test_links_of_the_program_are_sent(program, agent_of, run_folder, server) -> None:
    """What a section was linked to through the OpenTelemetry API stands in both places."""
    linked = {"l": [[5, (1 << 64) - 1, 1 << 63]]}
    program.section("forward", 2, 5, payload=linked)
    program.stop(20)
    agent_of(program, traces=read_settings({}, "traces", server.url)[0]).run()

    expected = [["0000000000000005ffffffffffffffff", "8000000000000000"]]
    stored = {span["name"]: json.loads(span["links"]) for span in table(run_folder, "spans")}
    sent = {span["name"]: span["links"] for span in server.spans()}
    assert stored == {"forward": expected, "run": []}
    assert sent == stored


def test_section_open_at_a_death_is_sent_as_failed(journals, run_folder, server) -> None:
    """What was never left did not end well; nothing was recorded that could say more."""
    program = Program(journals, run_folder)
    program.open("checkpoint.save", 3)
    program.journal.release()
    traces = read_settings({}, "traces", server.url)[0]
    Agent(program.meta, Tail(journals), Options(policy=Policy(), traces=traces)).run()

    (span,) = (span for span in server.spans() if span["name"] == "checkpoint.save")
    assert span["error"] == names.INTERRUPTED_WORDS
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
