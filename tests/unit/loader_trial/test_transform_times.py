"""Each transform of a dataset is timed, and the dataset is left unchanged."""

from __future__ import annotations

import pytest

from otel_mlperf.loader_trial.timing import timed_transforms


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, value):
        for transform in self.transforms:
            value = transform(value)
        return value


class Add:
    size = 3

    def __init__(self, clock, spent):
        self.clock, self.spent = clock, spent

    def __call__(self, value):
        self.clock.now += self.spent
        return value + 1


class Clock:
    now = 0

    def __call__(self):
        return self.now


class Data:
    def __init__(self, **held):
        vars(self).update(held)

    def __getitem__(self, at):
        return self.transform(at)


def times(timed):
    return [(one.name, one.calls, one.spent_ns) for one in timed]


def test_each_of_a_compose():
    """In lists inside lists; results and attributes stay."""
    clock = Clock()
    inner, add, double = Add(clock, 5), Add(clock, 7), lambda value: value * 2
    data = Data(transform=Compose([add, Compose([inner, double])]))
    with timed_transforms(data, clock) as timed:
        assert [data[1], data[2]] == [6, 8]
        assert data.transform.transforms[0].size == 3

    assert times(timed) == [("Add", 2, 14), ("Add", 2, 10), ("<lambda>", 2, 0)]
    assert data.transform.transforms[0] is add
    assert data.transform.transforms[1].transforms == [inner, double]


def test_one_alone_and_in_datasets_inside():
    """Of a subset's dataset, and of a pair of transforms as torchvision holds them."""
    clock = Clock()
    image, label = Add(clock, 2), Add(clock, 3)
    inside = Data(transform=image, transforms=Data(transform=image, target_transform=label))
    subset = Data(dataset=inside)
    with timed_transforms(subset, clock) as timed:
        assert inside[1] == 2
        assert inside.transforms.target_transform(1) == 2

    assert times(timed) == [("Add", 1, 2), ("Add", 0, 0), ("Add", 1, 3)]
    assert inside.transform is image
    assert inside.transforms.target_transform is label


def test_what_raises_is_put_back_too():
    """An exception goes on as it is, and counts as a call."""
    data = Data(transform=Compose([int]))
    with pytest.raises(ValueError, match="invalid literal"):  # noqa: SIM117
        with timed_transforms(data, Clock()) as timed:
            data["x"]

    assert times(timed) == [("int", 1, 0)]
    assert data.transform.transforms == [int]


def test_nothing_to_see():
    """A list of samples, a transform that is none, a class that lets nothing be set."""

    class Fixed(Data):
        def __setattr__(self, name, value):
            raise AttributeError(name)

    for data in ([1, 2], Data(transform=None), Fixed(transform=len)):
        with timed_transforms(data, Clock()) as timed:
            assert timed == []
