"""Whether linking finds in recorded traces what a slow reading of them finds."""

from __future__ import annotations

import pytest
from kineto_recorded import needs_torch
from kineto_reference import DEVICE, Reference
from kineto_traces import real_traces

from otel_mlperf.kineto.linking.link import Place, link
from otel_mlperf.kineto.reading.trace_reader import read_trace

_HERE = [
    pytest.param("", marks=needs_torch, id="this_machine"),
    pytest.param("--stacks", marks=needs_torch, id="this_machine_with_stacks"),
]


@pytest.fixture(scope="module", params=[*real_traces(), *_HERE])
def both(request, recorded_trace):
    path = request.param
    if isinstance(path, str):
        path = recorded_trace(*path.split())
    trace = read_trace(path)
    return trace, link(trace), Reference(path)


def test_every_parent_is_that_of_the_reference(both) -> None:
    """Host events nest by time, device events hang under what launched them."""
    trace, links, reference = both
    assert len(trace.events) == len(reference.events)

    expected = [reference.parent(event) for event in reference.events]

    assert links.parent.tolist() == expected


def test_every_launch_is_that_of_the_reference(both) -> None:
    """The call of a device event is the one of its correlation."""
    _, links, reference = both

    expected = [reference.launch.get(event["row"], -1) for event in reference.events]

    assert links.launch.tolist() == expected


def test_every_arrow_of_autograd_is_followed(both) -> None:
    """Where the file draws an arrow, forward operators are found by it and without it alike."""
    trace, links, reference = both
    arrows = reference.forward()
    assert {row: int(links.forward[row]) for row in arrows} == arrows

    trace.flow_kinds = ["" for _ in trace.flow_kinds]
    again = link(trace)

    assert again.forward.tolist() == links.forward.tolist()
    assert "forward_contradicts" not in links.orphans


def test_backward_operators_bear_the_number_of_their_forward_operator(both) -> None:
    """Both have the same sequence number, and the forward operator began before."""
    trace, links, _ = both
    events = trace.events
    rows = (links.forward >= 0).nonzero()[0]
    answered = links.forward[rows]

    assert (events.sequence[rows] == events.sequence[answered]).all()
    assert (events.start_ns[answered] <= events.start_ns[rows]).all()


def test_every_step_is_that_of_the_reference(both) -> None:
    """Host events count to the step of their start, device events to that of their launch."""
    _, links, reference = both
    names = [step.name for step in links.steps] + [""]

    found = [names[step] for step in links.step.tolist()]

    assert found == [reference.step(event) for event in reference.events]


def test_places_and_counts_agree(both) -> None:
    """Orphans are the device events without a parent, and each is counted once."""
    _, links, reference = both
    lost = [
        event["row"]
        for event in reference.events
        if event["cat"] in DEVICE and reference.parent(event) == -1
    ]

    assert (links.place == Place.ORPHAN).nonzero()[0].tolist() == lost
    counted = [links.orphans.get(kind, 0) for kind in ("launch_unknown", "annotation_unknown")]
    assert sum(counted) == len(lost)
