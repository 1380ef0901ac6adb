"""Whether operators are found in the sections that ran them, by two clocks of a real program."""

from __future__ import annotations

import pytest
from kineto_recorded import needs_torch, parts_as_sections

from otel_mlperf.kineto.linking.link import Place, link
from otel_mlperf.kineto.reading.trace_reader import read_trace

pytestmark = needs_torch


@pytest.fixture(scope="module", params=["", "--stacks"])
def recorded(request, recorded_trace):
    path = recorded_trace(*request.param.split())
    trace, sections = read_trace(path), parts_as_sections(path)
    return trace, link(trace, sections), sections


def section_above(links, sections, row):
    """The name of the section at the top of an event's parents."""
    while links.parent[row] >= 0:
        row = links.parent[row]
    return sections.name[links.section[row]] if links.section[row] >= 0 else None


def above(recorded, wanted):
    """The sections above all operators whose name is wanted."""
    trace, links, sections = recorded
    names = [trace.names[name] for name in trace.events.name.tolist()]
    return [section_above(links, sections, row) for row, n in enumerate(names) if wanted(n)]


def test_operators_are_in_the_section_that_ran_them(recorded) -> None:
    """Two steps of two layers, one optimizer and one compiled region each."""
    assert above(recorded, "aten::linear".__eq__) == ["forward"] * 4
    assert above(recorded, "aten::relu".__eq__) == ["forward"] * 2
    assert set(above(recorded, lambda name: name.startswith("Optimizer.step"))) == {"optimizer"}
    assert (
        above(recorded, lambda name: name.startswith("Torch-Compiled Region")) == ["compiled"] * 2
    )


def test_backward_operators_are_in_the_section_that_waits_for_them(recorded) -> None:
    """They run on another thread than the section, which has none of its own."""
    found = above(recorded, lambda name: name.endswith("Backward0"))

    assert len(found) == 2 * 2 * 6  # steps, operators and what evaluates them, nodes
    assert set(found) == {"backward"}


def test_other_threads_have_their_own_sections(recorded) -> None:
    """What a loader's thread does is under what it recorded itself."""
    trace, links, _ = recorded
    assert above(recorded, "inner".__eq__) == ["fetch"] * 6
    rows = [row for row, name in enumerate(trace.events.name) if trace.names[name] == "inner"]

    assert [Place(links.place[row]) for row in rows] == [Place.SECTION] * 6


def test_every_event_counts_to_a_recorded_step(recorded) -> None:
    """As many to the second as to the first, but for what the profiler does between them."""
    trace, links, _ = recorded
    is_operator = trace.events.category == trace.categories.index("cpu_op")
    counts = [int((is_operator & (links.step == step)).sum()) for step in (1, 2)]

    assert [step.name for step in links.steps] == ["train.step"] * 3
    assert counts[0] == counts[1]
    assert counts[0] > 80
    assert int((is_operator & (links.step < 1)).sum()) == 0
