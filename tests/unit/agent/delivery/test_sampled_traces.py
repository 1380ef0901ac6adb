"""A sampler decides which traces are sent; everything is measured and stored all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_hand import accounts, adds_up, agent_folder, table
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options, read_options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.otlp.endpoint_settings import read_settings
from otel_mlperf.settings.trace_sampler import make_sampler

STEPS = 40


def run_agent(program, agent_of, server, name, ratio=1.0, **more):
    """Deliver the run of ``program``, of which every step is selected."""
    sent = {signal: read_settings({}, signal, server.url)[0] for signal in ("traces", "metrics")}
    policy = Policy(trace_first=STEPS, max_spans_per_rank=more.pop("max_spans_per_rank", 2000))
    agent_of(program, policy=policy, sampler=make_sampler(name, ratio), **sent, **more).run()


def test_traces_that_the_sdk_would_sample_are_sent(program, agent_of, run_folder, server) -> None:
    """The run folder has all of them, the identity adds up, and metrics count every step."""
    for i in range(STEPS):
        program.step(i * 10)
    program.stop(1000)
    run_agent(program, agent_of, server, "traceidratio", 0.4)

    stored, theirs = table(run_folder, "spans"), TraceIdRatioBased(0.4)
    wanted = [
        (span["trace_id"], span["span_id"])
        for span in stored
        if theirs.should_sample(None, int(span["trace_id"], 16), "").decision.is_sampled()
    ]
    sent = [(span["trace_id"], span["span_id"]) for span in server.spans()]
    assert sorted(sent) == sorted(wanted)
    assert 0 < len(sent) < len(stored) == program.sections
    of = accounts(run_folder)["spans"]
    assert (of["store"]["unselected"], of["otlp"]["delivered"]) == (0, len(sent))
    assert of["otlp"]["unselected"] == len(stored) - len(sent)
    assert adds_up(of["otlp"])
    points = [point for point in server.points() if point["name"] == names.STEP_DURATION.name]
    assert points[-1]["count"] == STEPS
    exemplars = {tuple(one) for point in points for one in point["exemplars"]}
    assert exemplars
    assert exemplars <= set(sent)


def test_no_span_is_sent_with_always_off(program, agent_of, run_folder, server) -> None:
    """Neither the run nor an exemplar nor a roll-up; metrics are."""
    step = program.begin_step(0)
    for i in range(9):
        program.section("forward", i, i + 1, parent=step, root=step)
    program.end_step(step, 0, 10)
    program.stop(20)
    run_agent(program, agent_of, server, "always_off", max_spans_per_rank=4)

    assert server.spans() == []
    assert not [one for point in server.points() for one in point["exemplars"]]
    of = accounts(run_folder)["spans"]
    assert of["store"]["rolled_up"] > 0
    assert (of["otlp"]["rolled_up"], of["otlp"]["unselected"]) == (0, program.sections)


@pytest.mark.parametrize("exemplars", [True, False])
def test_exemplars_can_be_switched_off(program, agent_of, server, exemplars) -> None:
    """Points then lead to no span, although spans are sent."""
    program.step(0)
    program.stop(20)
    run_agent(program, agent_of, server, "", exemplars=exemplars)

    assert server.spans()
    assert any(point["exemplars"] for point in server.points()) == exemplars


@pytest.mark.parametrize(
    ("name", "sampled"),
    [("", {0, 1}), ("parentbased_always_off", {1}), ("always_off", set()), ("always_on", {0, 1})],
)
def test_callers_decision_holds_with_a_parent_based_sampler(tmp_path, server, name, sampled):
    """Of a request of another service; without one the sampler decides itself."""
    given = {"OTEL_TRACES_SAMPLER": name, "OTEL_EXPORTER_OTLP_ENDPOINT": server.url}
    with om.start("digits", dir=tmp_path / "runs", agent="none", console=False) as run:
        for flags in (0, 1):
            caller = SpanContext(flags + 7, 9, is_remote=True, trace_flags=TraceFlags(flags))
            with trace.use_span(NonRecordingSpan(caller)), om.span("served"):
                pass
        journal = run._recorder.journal
        tail = Tail(Path(journal.path).parent, {journal.path: journal.buffer})
        options: Options = read_options(given)
        agent = Agent(agent_folder(run._recorder.meta), tail, options)
        agent.tick()
        agent.mark()
    agent.run()

    served = [span for span in server.spans() if span["name"] == "served"]
    assert {int(span["trace_id"], 16) - 7 for span in served} == sampled
