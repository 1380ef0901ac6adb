"""Padding in a batch of token numbers is counted, and nothing else is taken for it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cell_values import series
from hypothesis import given
from hypothesis import strategies as st

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.recorder.instruments.batch_padding import count_padding

torch = pytest.importorskip("torch")
LENGTHS = (30, 12, 25, 4)
WIDTH = 40


def tokens(lengths=LENGTHS, width=WIDTH, pad=0, *, left=False):
    """Rows of different numbers, the rest of each is padding."""
    of = random.Random(1)
    rows = [[of.randrange(5, 90) for _ in range(length)] for length in lengths]
    gaps = [[pad] * (width - len(row)) for row in rows]
    pairs = zip(rows, gaps, strict=True)
    return torch.tensor([gap + row if left else row + gap for row, gap in pairs])


def padding(lengths=LENGTHS, width=WIDTH):
    """That a row has one number of padding less than there is: it could be the sentence's end."""
    return sum(width - length - 1 for length in lengths), width * len(lengths)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("pad", [0, 1, -100])
def test_padding_of_token_numbers(left, pad):
    """On the right or on the left, whatever number it is."""
    assert count_padding(tokens(pad=pad, left=left)) == padding()


def test_a_batch_of_several_parts():
    """With labels, inside of containers, or as an array of NumPy."""
    ids, labels = tokens(), torch.tensor([1, 0, 1, 1])

    assert count_padding((ids, labels)) == padding()
    assert count_padding([{"labels": labels, "input": (ids,)}]) == padding()
    assert count_padding(ids.numpy()) == padding()


def test_a_mask_says_it_exactly():
    """Also where a sequence ends with its padding's number."""
    ids = tokens()
    mask = (torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]).long()

    assert count_padding({"input_ids": ids, "attention_mask": mask}) == (
        WIDTH * 4 - sum(LENGTHS),
        WIDTH * 4,
    )
    assert count_padding({"input_ids": ids, "attention_mask": mask.bool()}) == (
        WIDTH * 4 - sum(LENGTHS),
        WIDTH * 4,
    )


@pytest.mark.parametrize(
    "batch",
    [
        torch.randn(8, 3, 32, 32),  # pictures
        torch.zeros(8, 64),  # features that are missing
        torch.zeros(8, 64, dtype=torch.int64),  # classes, or a mask
        torch.randint(0, 2, (8, 64)),  # a mask
        torch.arange(8),  # labels
        torch.randint(0, 90, (1, 64)),  # one sample
        torch.randint(0, 90, (8, 64), device="meta"),
        "text",
        None,
        [],
        [torch.randint(0, 90, (64,)) for _ in range(8)],  # samples that nobody collated
    ],
)
def test_what_holds_no_tokens(batch):
    """Nothing is counted."""
    assert count_padding(batch) is None


def test_texts_that_fill_their_rows():
    """One and the same token at the end of each is no padding."""
    rows = torch.randint(5, 90, (16, 64))
    rows[:, 0] = torch.arange(100, 116)  # by chance two of them may begin with the same one twice
    rows[:, -1] = 2

    assert count_padding(rows) == (0, 16 * 64)


@given(st.lists(st.integers(0, WIDTH), min_size=2, max_size=32))
def test_never_more_than_there_is(lengths):
    """Whatever the lengths; the numbers of a text may happen to be its padding's."""
    found = count_padding(tokens(lengths))

    if found is not None:
        padded, places = found
        assert places == WIDTH * len(lengths)
        assert 0 <= padded <= sum(WIDTH - length for length in lengths)


def test_looked_at_are_batches_ever_further_apart(recording):
    """The 1st, 2nd, 4th and 8th of ten, in their steps; the batch stays as it is."""
    ids = tokens()
    before = ids.clone()
    for _ in om.steps([(ids, 1)] * 10):
        pass

    padded, places = padding()
    assert torch.equal(ids, before)
    found = {name: value for (name, _), value in series(recording, "counter").items()}
    assert found[names.PLACES.name] == 4 * places
    assert found[names.PADDED.name] == 4 * padded


def test_a_tensor_of_a_kind_of_its_own_is_not_read():
    """It may ask other ranks for what it holds."""

    class Spread(np.ndarray):
        def tolist(self):
            raise AssertionError("read")

    assert count_padding(np.arange(64).reshape(2, 32).view(Spread)) is None


@pytest.mark.filterwarnings("ignore")  # torch's: both are in its beta
@pytest.mark.parametrize("layout", ["sparse", "nested"])
def test_a_foreign_layout_is_left_out(recording, layout):
    """And the loop goes on."""
    if layout == "sparse":
        odd = torch.eye(16, dtype=torch.int64).to_sparse_csr()
    else:
        odd = torch.nested.nested_tensor([torch.arange(9), torch.arange(12)])

    assert len(list(om.steps([odd] * 2))) == 2
