"""Does each step get the samples of the batches that it trains on?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.pytorch.loop.step_batches import StepBatches


def samples_of_steps(sizes, accumulate, *, is_ahead):
    """Plays one pass over batches of those sizes; what each step says."""
    batches, left, found = StepBatches(), list(sizes), []
    for first in range(0, len(sizes), accumulate):
        group = sizes[first : first + accumulate]
        batches.begin(is_first=first == 0)
        for _ in range(len(group) + (is_ahead and first == 0)):
            if left:
                batches.give(left.pop(0), is_own=True)
            else:
                batches.release()
        batches.passes = len(group)
        batches.end(1)
        found.append(batches.samples)
    return found


@given(
    st.lists(st.integers(1, 64), min_size=2, max_size=20),
    st.integers(1, 5),
    st.booleans(),
)
def test_samples_are_those_that_were_trained_on(sizes, accumulate, is_ahead):
    """Of every size and grouping, with a batch asked ahead and without."""
    true = [sum(sizes[i : i + accumulate]) for i in range(0, len(sizes), accumulate)]

    assert samples_of_steps(sizes, accumulate, is_ahead=is_ahead) == true


def test_batches_of_unknown_size_have_no_samples():
    """What cannot be counted is absent, not zero."""
    assert samples_of_steps([None, None, None], 1, is_ahead=True) == [None, None, None]


def test_batches_of_another_loader_are_not_ahead():
    """Two loaders in one step are both of it, from the first step on."""
    batches = StepBatches()
    for is_first in (True, False):
        batches.begin(is_first=is_first)
        batches.give(4, is_own=True)
        batches.give(3, is_own=False)
        batches.passes = 1
        batches.end(1)
        assert batches.samples == 7
