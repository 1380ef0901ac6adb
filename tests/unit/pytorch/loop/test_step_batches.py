"""Each step gets the samples of the batches that it trains on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.pytorch.loop.step_batches import Content, StepBatches


class Padded:
    """A batch of eight places a sample."""

    def __init__(self, samples):
        self.shape = (samples, 8)


def contents_of_steps(sizes, accumulate, *, is_ahead):
    """Plays one pass over batches of those sizes; what each step says."""
    batches, left, found = StepBatches(), list(sizes), []
    for first in range(0, len(sizes), accumulate):
        group = sizes[first : first + accumulate]
        batches.begin(is_first=first == 0)
        for _ in range(len(group) + (is_ahead and first == 0)):
            if left:
                size = left.pop(0)
                batches.give(size, is_own=True, batch=Padded(size) if size else None)
            else:
                batches.release()
        batches.passes = len(group)
        batches.end(1)
        found.append(batches.content)
    return found


@given(
    st.lists(st.integers(1, 64), min_size=2, max_size=20),
    st.integers(1, 5),
    st.booleans(),
)
def test_samples_are_those_that_were_trained_on(sizes, accumulate, is_ahead):
    """Of every size and grouping, with a batch asked ahead and without."""
    true = [sum(sizes[i : i + accumulate]) for i in range(0, len(sizes), accumulate)]

    found = contents_of_steps(sizes, accumulate, is_ahead=is_ahead)
    assert found == [Content(samples, 8 * samples) for samples in true]


def test_batches_of_unknown_size_have_no_samples():
    """What cannot be counted is absent, not zero."""
    assert contents_of_steps([None, None, None], 1, is_ahead=True) == [Content()] * 3


def test_batches_of_another_loader_are_not_ahead():
    """Two loaders in one step are both of it, from the first step on."""
    batches = StepBatches()
    for is_first in (True, False):
        batches.begin(is_first=is_first)
        batches.give(4, is_own=True)
        batches.give(3, is_own=False)
        batches.passes = 1
        batches.end(1)
        assert batches.content == Content(7)
