"""What a program's tracer provider gets of a run that joins it, whatever that provider does.

The agent's end of the socket is here, too: batches made by hand, their answers looked at.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    ParentBased,
    TraceIdRatioBased,
)
from opentelemetry.trace import ProxyTracerProvider

import otel_mlperf as om
from otel_mlperf import ids, names
from otel_mlperf.agent.delivery.destination import Batch, Delivered, Refused, SpanItem, TryLater
from otel_mlperf.agent.delivery.provider_destination import ProviderDestination, drop_sockets
from otel_mlperf.integrations import joined_provider
from otel_mlperf.integrations.joined_provider import JoinedProvider
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.core import faults

HIGH, LOW = "f" * 32, "0" * 31 + "1"
"""Trace ids that a sampler of half the traces drops, and takes."""


@pytest.fixture
def run(tmp_path):
    """An active run without an agent."""
    faults._said.clear()
    made = om.start("x", dir=tmp_path, agent="none", console=False, readings="none")
    yield made
    made.stop()
    journal = made._recorder.journal
    with contextlib.suppress(OSError):
        os.unlink(journal.path)
    drop_sockets(Path(journal.path).parent)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(journal.path))
    journal.release()


@pytest.fixture
def agent(run):
    """The agent's end."""
    made = ProviderDestination(run.path)
    yield made
    made.close("spans")


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


@pytest.fixture
def joined(run, agent):
    """Joins the providers that are found one after the other, of which the last one stays."""
    made = []

    def join(*providers, patience_s=900.0):
        found = list(providers)
        one = JoinedProvider(
            run, lambda: found.pop(0) if len(found) > 1 else found[0], patience_s=patience_s
        )
        one.start()
        made.append(one)
        return one

    yield join
    for one in made:
        one._ending.set()
        with contextlib.suppress(OSError):  # it has ended by itself
            one._listener.shutdown(socket.SHUT_RDWR)
    agent.close("spans")
    for thread in threading.enumerate():
        if thread.name == "otel_mlperf join":
            thread.join()


def item(name="forward", number=5, trace=LOW, parent="", **more):
    return SpanItem(
        rank=0, restart=0, trace_id=trace, span_id=f"{number:016x}", parent_id=parent, name=name,
        category="other", start_ns=1, end_ns=2, **more,
    )  # fmt: skip


def batch(run, *items, number=1, **resource):
    meta = run._recorder.meta
    known = {
        names.SERVICE_INSTANCE_ID: ids.instance_id(meta.run_id, meta.restart, meta.rank),
        names.RUN_ID: meta.run_id, names.RANK: meta.rank, names.SERVICE_NAME: "x",
    }  # fmt: skip
    count = sum(each.kind == "section" for each in items)
    return Batch(
        number=number, signal="spans", items=count, resource=known | resource, spans=list(items)
    )


def last(run):
    """The span of the run, after which nothing comes."""
    return item("run", run._recorder.meta.run_span)


def got(exporter):
    return [span.name for span in exporter.get_finished_spans()]


@pytest.mark.parametrize(
    ("sampler", "taken"),
    [
        (ALWAYS_ON, ["step", "other", "sampled", "unsampled"]),
        (DEFAULT_ON, ["step", "other", "sampled"]),
        (ParentBased(TraceIdRatioBased(0.5)), ["step", "other", "sampled"]),
        (TraceIdRatioBased(0.5), ["step", "sampled", "unsampled"]),
        (ALWAYS_OFF, []),
    ],
    ids=["on", "parent", "parent-ratio", "ratio", "off"],
)
def test_sampler_decides_as_about_a_span_of_the_program(
    run, agent, joined, exporter, sampler, taken
):
    """Traces of the run are sampled for it, others as their callers say; the rest is unselected."""
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    joined(provider)
    dropped = {names.UNSAMPLED: True, names.REMOTE_PARENT: True}
    answer = agent.accept(
        batch(
            run,
            item("step", 1),
            item("other", 2, trace=HIGH),
            item("sampled", 3, parent="aa" * 8, attributes={names.REMOTE_PARENT: True}),
            item("unsampled", 4, parent="aa" * 8, attributes=dropped),
        )
    )
    assert got(exporter) == taken
    assert answer == Delivered({"unselected": 4 - len(taken)} if len(taken) < 4 else {})


def test_resource_of_the_program_comes_first(run, agent, joined, exporter):
    """Attributes of its provider's resource beat those of the run, but for an unknown service."""
    resource = Resource({names.SERVICE_NAME: "unknown_service:python", "host.name": "theirs"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    joined(provider)
    agent.accept(batch(run, item(), **{"host.name": "ours"}))

    (span,) = exporter.get_finished_spans()
    attributes = span.resource.attributes
    assert (attributes[names.SERVICE_NAME], attributes["host.name"]) == ("x", "theirs")
    assert attributes[names.RUN_ID] == run.id


class Failing(SpanProcessor):
    """A processor of the program that fails at some spans."""

    def on_end(self, span):
        if span.name == "bad":
            raise ValueError("no")


def test_processor_that_fails_costs_its_spans_alone(run, agent, joined, exporter, caplog):
    """Each is counted as lost, which is logged once; roll-ups are no items."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Failing())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    joined(provider)
    spans = [item("bad", 1), item("good", 2), item("bad", 3), item("bad", 4, kind="rollup")]

    assert agent.accept(batch(run, *spans)) == Delivered({"processor_failed": 2})
    assert got(exporter) == ["good"]
    assert len(caplog.messages) == 1
    assert run._recorder.journal.said[Word.CALLBACK_ERRORS] == 3


def test_processor_that_blocks_does_not_hold_the_end_of_the_run(run, agent, joined, caplog):
    """The end waits for a bounded time, and says what it has not waited for."""
    free = threading.Event()

    class Blocking(SpanProcessor):
        def on_end(self, span):
            free.wait()

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Blocking())
    made = joined(provider, patience_s=0.01)
    sending = threading.Thread(target=agent.accept, args=(batch(run, last(run)),))
    sending.start()
    made.finish()

    assert "were not exported" in caplog.text
    assert sending.is_alive()
    free.set()
    sending.join()


def test_end_of_the_run_waits_for_the_flush(run, agent, joined):
    """Once it has returned, exporters behind queues have the last span; nothing is shut down."""
    calls = []

    class Queue(SpanProcessor):
        def on_end(self, span):
            calls.append(span.name)

        def force_flush(self, timeout_millis=30000):
            calls.append("flush")
            return True

        def shutdown(self):
            calls.append("shutdown")

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Queue())
    made = joined(provider)
    agent.accept(batch(run, item(), last(run)))
    made.finish()

    assert calls == ["forward", "run", "flush"]


def test_spans_wait_for_a_provider_that_is_set_late(run, agent, joined, provider, exporter, caplog):
    """They are handed over once it is there; one warning says that there was none."""
    joined(ProxyTracerProvider(), ProxyTracerProvider(), provider)

    assert agent.accept(batch(run, item())) == Delivered()
    assert got(exporter) == ["forward"]
    assert [text.partition(";")[0] for text in caplog.messages] == [
        "provider='join': the program has not set a TracerProvider yet"
    ]


def test_without_a_provider_the_run_ends_as_ever(run, agent, joined, caplog):
    """The end waits for nobody, and the spans are lost for the provider alone."""
    made = joined(ProxyTracerProvider())
    made.finish()

    assert agent.accept(batch(run, item(), last(run))) == Delivered({"no_provider": 2})
    assert agent.accept(batch(run, item(), number=2)) == Delivered({"no_provider": 1})
    assert len(caplog.messages) == 1


def test_provider_of_another_make_is_named(run, agent, joined, caplog):
    """One without the SDK's processors gets nothing, which is said with its type."""

    class Theirs:
        """A provider of somebody else."""

    joined(Theirs())
    assert agent.accept(batch(run, item())) == Delivered({"no_span_processor": 1})
    assert "Theirs has no span processors" in caplog.text


def test_batch_that_another_agent_sends_again_is_handed_over_once(
    run, agent, joined, provider, exporter
):
    """The answer is that of the first time."""
    provider.add_span_processor(Failing())
    joined(provider)
    first = agent.accept(batch(run, item("bad"), item("good", 6), number=7))
    agent.close("spans")
    after = ProviderDestination(run.path)

    assert after.accept(batch(run, item("bad"), item("good", 6), number=7)) == first
    assert got(exporter) == ["bad", "good"]
    after.accept(batch(run, item("next", 8), number=8))
    assert got(exporter) == ["bad", "good", "next"]
    after.close("spans")


def test_forked_child_keeps_no_end_of_the_socket(run, agent, joined, provider):
    """The agent notices the end of the process although a child of it lives on."""
    joined(provider)
    agent.accept(batch(run, item()))  # so that there is a connection
    ours = {os.fstat(end.fileno()).st_ino for end in joined_provider._open}
    told, tell = os.pipe()
    if (child := os.fork()) == 0:
        open_here = [os.stat(f"/proc/self/fd/{fd}").st_ino for fd in _descriptors()]
        os.write(tell, str(len(ours.intersection(open_here))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(tell)
    with os.fdopen(told) as answer:
        assert (len(ours), answer.read()) == (2, "0")
    assert agent.accept(batch(run, item(), number=2)) == Delivered()


def _descriptors():
    """Those that are open, without that of the listing itself."""
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


def test_without_the_sdk_the_run_is_recorded(tmp_path, monkeypatch, caplog):
    """A setting of the environment never ends a job: one warning says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    for name in ("integrations.joined_provider", "otlp.sdk_spans"):
        monkeypatch.delitem(sys.modules, f"otel_mlperf.{name}", raising=False)
    faults._said.clear()
    with om.start("x", dir=tmp_path, provider="join", console=False) as made:
        assert made.is_active
    assert "pip install opentelemetry-sdk" in caplog.text


def test_process_that_has_ended_gets_nothing_more(run, agent):
    """What waits for it is lost at once: nobody tries it again for hours."""
    assert agent.accept(batch(run, item())) == Refused("process_ended")


def test_lost_connection_is_tried_again(run, agent, joined, provider, exporter):
    """A batch that was cut off is kept by the agent, and the next try decides."""
    joined(provider)
    agent.accept(batch(run, item()))
    for connection in agent._connections.values():
        connection.close()

    assert isinstance(agent.accept(batch(run, item("cut"), number=2)), TryLater)
    assert agent.accept(batch(run, item("cut"), number=2)) == Delivered()
    assert got(exporter) == ["forward", "cut"]
