"""The number of planned steps is known, without calling the program's own code."""

from __future__ import annotations

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.recorder.stepping.planned_steps import find_batches, find_left


def expected(recording):
    """What the journal has as the planned number of steps; None where nothing has."""
    floats = recording.journal.floats
    of = recording.recorder.cells._shared
    found = (floats[word + 1] for key, word in of.items() if key[2] == names.STEPS_EXPECTED.name)
    return next(found, None)


def test_batches_of_all_epochs(recording):
    """Ten batches in twos make five steps, in each of three epochs."""
    for _ in om.epochs(3):
        for _ in om.steps(range(10), accumulate=2):
            pass

    assert expected(recording) == 15


def test_of_a_resumed_training(start):
    """It went on in its second epoch, from step 5."""
    recording = start(step=5)
    for _ in om.epochs(3, start=1):
        for _ in om.steps([0] * 5):
            pass

    assert expected(recording) == 15


@pytest.mark.parametrize("how", ["no epochs", "generator", "validation"])
def test_what_nobody_knows_is_not_said(recording, how):
    """Epochs of a loop of the program's own, batches without a length, steps of no training."""
    if how == "no epochs":
        list(om.steps([1, 2]))
    for _ in om.epochs(2) if how == "generator" else ():
        list(om.steps(one for one in (1, 2)))
    for _ in om.epochs(2) if how == "validation" else ():
        with om.phase("validate"):
            list(om.steps([1, 2]))

    assert expected(recording) is None


def test_loader_of_torch_is_asked_by_its_sampler():
    """Its own length may warn later on; a stream has none."""
    torch = pytest.importorskip("torch.utils.data")

    class Stream(torch.IterableDataset):
        def __iter__(self):
            return iter(range(10))

        def __len__(self):
            raise AssertionError("nobody may ask")

    assert find_batches(torch.DataLoader(list(range(10)), batch_size=4)) == 3
    assert find_batches(torch.DataLoader(Stream(), batch_size=4)) is None
    assert find_batches(torch.DataLoader(list(range(10)), batch_size=None)) is None


def test_only_builtin_iterators_are_asked_what_is_left():
    """What belongs to the program may do anything when it is asked."""

    class Loud:
        def __iter__(self):
            return self

        def __next__(self):
            return 1

        def __length_hint__(self):
            raise AssertionError("nobody may ask")

    assert find_left(Loud()) is None
    assert find_left(iter(range(4))) == 4
