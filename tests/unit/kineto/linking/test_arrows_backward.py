"""Which forward operator does a backward operator answer: by number, by arrow, over threads."""

from __future__ import annotations

import pytest
from kineto_traces import flow, operator, write_trace

from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

MAIN, OTHER, ENGINE = 4242, 4300, 4400


@pytest.fixture
def answers(tmp_path):
    """For a trace of these entries: row of each backward operator to that of its forward one."""

    def build(*entries):
        links = link(read_trace(write_trace(tmp_path / "t.json", entries)))
        found = links.forward.tolist()
        return {row: at for row, at in enumerate(found) if at >= 0}, links.orphans

    return build


def forward(name, start, duration, number, *, tid=MAIN):
    """An operator of the forward pass."""
    args = {"Sequence number": number, "Fwd thread id": 0}
    return operator(name, start, duration, tid=tid, **args)


def backward(name, start, duration, number, *, thread=1, tid=ENGINE):
    """One of the backward pass, for the thread that autograd calls by this number."""
    args = {"Sequence number": number, "Fwd thread id": thread}
    return operator(name, start, duration, tid=tid, **args)


def test_last_operator_of_a_number_made_the_node(answers) -> None:
    """Not the ones around it, nor those before it that made none."""
    found, _ = answers(
        forward("aten::empty", 0, 5, 900),
        forward("aten::conv2d", 10, 50, 900),
        forward("aten::convolution", 15, 40, 900),
        forward("aten::relu", 70, 10, 901),
        backward("evaluate_function: ReluBackward0", 100, 30, 901),
        backward("ReluBackward0", 105, 20, 901),
        backward("ConvolutionBackward0", 200, 20, 900),
    )

    assert found == {4: 3, 5: 3, 6: 2}


def test_number_used_again_means_the_last_before(answers) -> None:
    """A forward operator after the backward one is not what it answers."""
    found, _ = answers(
        forward("first", 0, 5, 7), backward("back", 10, 5, 7), forward("second", 20, 5, 7)
    )

    assert found == {1: 0}


def test_backward_operator_of_an_earlier_forward_pass_answers_nothing(answers) -> None:
    """What it answers was before the window; the later use of its number is not it."""
    found, _ = answers(backward("back", 10, 5, 7), forward("second", 20, 5, 7))

    assert found == {}


def test_threads_with_the_same_numbers_are_told_apart_by_arrows(answers) -> None:
    """Each thread counts for itself; an arrow of each says which is which."""
    found, orphans = answers(
        forward("main a", 0, 5, 1),
        forward("main b", 10, 5, 2),
        forward("other a", 0, 5, 1, tid=OTHER),
        forward("other b", 10, 5, 2, tid=OTHER),
        backward("back main b", 20, 5, 2, thread=1),
        backward("back main a", 30, 5, 1, thread=1),
        backward("back other b", 40, 5, 2, thread=2),
        backward("back other a", 50, 5, 1, thread=2),
        flow("s", 1, 10, category="fwdbwd"),
        flow("f", 1, 20, category="fwdbwd", tid=ENGINE),
        flow("s", 2, 10, category="fwdbwd", tid=OTHER),
        flow("f", 2, 40, category="fwdbwd", tid=ENGINE),
    )

    assert found == {4: 1, 5: 0, 6: 3, 7: 2}
    assert orphans == {}


def test_thread_with_most_of_the_numbers_is_meant_without_arrows(answers) -> None:
    """Files of old versions have none."""
    found, _ = answers(
        forward("other", 0, 5, 1, tid=OTHER),
        forward("main a", 0, 5, 1),
        forward("main b", 10, 5, 2),
        backward("back b", 20, 5, 2),
        backward("back a", 30, 5, 1),
    )

    assert found == {3: 2, 4: 1}


def test_arrow_is_believed_where_both_differ(answers) -> None:
    """And that they differ is counted."""
    found, orphans = answers(
        forward("a", 0, 5, 1),
        forward("b", 10, 5, 2),
        backward("back", 20, 5, 2),
        flow("s", 1, 0, category="fwdbwd"),
        flow("f", 1, 20, category="fwdbwd", tid=ENGINE),
    )

    assert found == {2: 0}
    assert orphans == {"forward_contradicts": 1}


def test_arrows_without_an_end_join_nothing(answers) -> None:
    """A tail or head where no operator begins, or no head at all."""
    found, orphans = answers(
        forward("a", 0, 5, 1),
        operator("back", 20, 5, tid=ENGINE),
        flow("s", 1, 0, category="fwdbwd"),
        flow("s", 2, 3, category="fwdbwd"),
        flow("f", 2, 20, category="fwdbwd", tid=ENGINE),
        flow("f", 3, 20, category="fwdbwd", tid=ENGINE),
    )

    assert found == {}
    assert orphans == {}
