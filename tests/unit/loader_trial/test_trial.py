"""All of a DataLoader is reported, with each setting, and it is rebuilt unchanged."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from otel_mlperf.errors import LoaderError
from otel_mlperf.loader_trial.loader_settings import Setting, Trial
from otel_mlperf.loader_trial.loaders import made_again
from otel_mlperf.loader_trial.trial import (
    count_bytes,
    look_inside,
    read_memory,
    read_notes,
    try_loader,
)

MS = 1_000_000


class Clock:
    now = 0

    def __call__(self):
        return self.now


CLOCK = Clock()


class Costly(Dataset):
    """Samples that take a millisecond of the test's own clock, and their transform two."""

    def __init__(self):
        self.transform = self.double

    def double(self, value):
        CLOCK.now += 2 * MS
        return value * 2

    def __len__(self):
        return 12

    def __getitem__(self, at):
        CLOCK.now += MS
        return self.transform(torch.tensor([at]))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(12.0))


def collate(samples):
    CLOCK.now += 5 * MS
    return torch.stack(samples)


def asked(loader, counts=(0,)):
    said = []
    answer = try_loader("x:loader", loader, batches=2, counts=counts, cpus=1, tell=said.append)
    return answer, said


def test_what_a_batch_is_made_of():
    """Items, the transform in them, collating: together the whole."""
    inside, _ = look_inside(DataLoader(Costly(), batch_size=4, collate_fn=collate), 20, CLOCK)

    assert (inside.batch_ns, inside.items_ns, inside.collate_ns) == (17 * MS, 12 * MS, 5 * MS)
    ((name, calls, spent),) = [(t.name, t.calls, t.batch_ns) for t in inside.transforms]
    assert (name, calls, spent) == ("double", 12, 8 * MS)


def test_all_of_a_loader():
    """Each setting, the size of a batch, the line to be pasted; with workers that are real."""
    answer, said = asked(DataLoader(Costly(), batch_size=4), (0, 1))

    settings = [trial.setting for trial in answer.trials]
    assert settings[:2] == [Setting(num_workers=0), Setting(num_workers=1)]
    assert (answer.kind, answer.dataset, answer.epoch_batches) == ("DataLoader", "Costly", 3)
    assert (answer.batch_samples, answer.batch_bytes) == (4, 4 * 8)
    assert answer.line is not None
    assert answer.line.startswith("DataLoader(..., num_workers=")
    assert all(trial.batch_ns > 0 and trial.first_batch_ns > 0 for trial in answer.trials)
    assert said[:2] == ["parts of the loader", "DataLoader(..., num_workers=0)"]


def test_what_only_gives_batches():
    """Its settings cannot be varied; it is timed as it is."""
    answer, _ = asked([torch.ones(3, 2)] * 4)

    assert [trial.setting for trial in answer.trials] == [None]
    assert (answer.kind, answer.best, answer.line, answer.batch_bytes) == ("list", None, None, 24)


def test_copies_of_an_iterable_dataset_are_told():
    """More workers than one give the same samples again."""
    answer, _ = asked(DataLoader(Stream(), batch_size=4))

    assert "copy of an IterableDataset" in answer.notes[0]


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Costly(), batch_size=5, drop_last=True),
        DataLoader(Costly(), batch_size=None),
        DataLoader(Costly(), batch_sampler=BatchSampler(SequentialSampler(Costly()), 3, False)),
        DataLoader(Stream(), batch_size=5),
        DataLoader(Stream(), batch_size=None),
    ],
    ids=["batches", "samples", "batch sampler", "stream", "stream of samples"],
)
def test_the_same_batches_come_with_another_setting(loader):
    """However the program has them put together."""
    given = [batch.tolist() for batch in loader]
    for workers in (0, 1):
        again = made_again(loader, Setting(num_workers=workers))
        assert [batch.tolist() for batch in again] == given


def test_the_fastest_is_named_whole_where_it_is_not_the_best():
    """Two settings may have the same number of workers."""
    best, fastest = (
        Trial(
            setting=Setting(num_workers=2, prefetch_factor=prefetch), batches=100, batch_ns=spent,
            noise=0.2, samples_per_s=None, first_batch_ns=0,
        )
        for prefetch, spent in ((None, 1.1 * MS), (4, MS))
    )  # fmt: skip

    (note,) = read_notes(DataLoader([1, 2]), [best, fastest], best)
    assert note.startswith("2 workers, prefetch 4 was fastest, ")


def test_a_loader_without_batches():
    """It says so."""
    with pytest.raises(LoaderError, match="it returned no batch"):
        asked(DataLoader([], batch_size=2))


def test_bytes_of_a_batch():
    """Of what holds tensors in whichever way."""

    class Pair:
        def __init__(self):
            self.image, self.name = torch.ones(3), "x"

    assert count_bytes({"x": torch.ones(2), "y": [torch.ones(1), (Pair(), 3)], "n": "one"}) == 24


def test_memory_is_of_all_processes(tmp_path):
    """Those that have ended hold none; None where the kernel does not say."""
    import os

    for pid, size in ((os.getpid(), 100), (7, 20)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "smaps_rollup").write_text(f"Rss: 900 kB\nPss:     {size} kB\n")

    assert read_memory([7, 8], tmp_path) == 120 * 1024
    assert read_memory([7], tmp_path / "nowhere") is None
