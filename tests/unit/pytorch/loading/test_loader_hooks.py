"""What happens inside a DataLoader is counted, and the loader stays what it is."""

from __future__ import annotations

import os
import random
import threading
import traceback

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.pin_memory import pin_memory

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.integrations.data_loader import DataLoaders

WORKERS = [0, 2]
each_way = pytest.mark.parametrize("workers", WORKERS)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """A worker that has raised ends only with this timeout of PyTorch, 5 s each."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)


class Noise(Dataset):
    def __init__(self, count=12):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        return torch.rand(3) + random.random() + at


class Broken(Noise):
    def __getitem__(self, at):
        raise ValueError(f"no sample {at}")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(6.0))


def pass_through(loader):
    return [batch.tolist() for batch in loader]


@each_way
def test_each_batch_is_fetched_by_a_worker(seen, workers):
    """All that were fetched, by which worker, in its two parts; the loop got as many."""
    pass_through(DataLoader(Noise(), batch_size=3, num_workers=workers))
    om.stop()

    expected = {str(worker): 2.0 for worker in range(workers)} or {"main": 4.0}
    assert seen.by_label(names.LOADER_FETCHED, names.LOADER_WORKER) == expected
    assert seen.by_label(names.LOADER_BATCHES, names.DATASET) == {"Noise": 4.0}
    assert seen.by_label(names.LOADER_WAIT, names.DATASET)["Noise"] > 0
    parts = seen.by_label(names.LOADER_FETCH_TIME, names.LOADER_WORKER, names.LOADER_PART)
    assert set(parts) == {(w, part) for w in expected for part in ("items", "collate")}
    assert all(spent > 0 for spent in parts.values())


def test_collate_fn_is_the_programs(seen):
    """Nothing is put around it: who looks at a fetcher finds what was given."""

    def collate(samples):
        return torch.stack(samples)

    fetcher = iter(DataLoader(Noise(6), collate_fn=collate))._dataset_fetcher
    assert fetcher.collate_fn is collate
    assert vars(fetcher)["collate_fn"] is collate


@pytest.mark.parametrize("persistent", [True, False])
def test_first_batch_of_each_pass(seen, persistent):
    """Workers that were started for it are told from those that were kept."""
    loader = DataLoader(Noise(), batch_size=3, num_workers=2, persistent_workers=persistent)
    for _ in range(3):
        pass_through(loader)
    om.stop()

    found = seen.by_label(names.LOADER_FIRST_BATCH, names.LOADER_WORKERS)
    assert set(found) == ({"started", "kept"} if persistent else {"started"})
    fetched = seen.by_label(names.LOADER_FETCHED, names.LOADER_WORKER)
    assert fetched == {"0": 6.0, "1": 6.0}


@each_way
def test_what_waits_uses_no_cpu(seen, workers):
    """CPU time of the thread that fetches, beside what its samples take."""

    class Resting(Noise):
        def __getitem__(self, at):
            threading.Event().wait(0.02)
            return super().__getitem__(at)

    pass_through(DataLoader(Resting(), batch_size=3, num_workers=workers))
    om.stop()

    cpu = seen.by_label(names.LOADER_CPU, names.LOADER_WORKER)
    parts = seen.by_label(names.LOADER_FETCH_TIME, names.LOADER_WORKER, names.LOADER_PART)
    delay = seen.by_label(names.LOADER_DELAY, names.LOADER_WORKER)
    assert set(cpu) == {worker for worker, _ in parts}
    for worker, used_s in cpu.items():
        rest_s = parts[worker, "items"] - used_s - delay.get(worker, 0.0)
        assert rest_s > 0.02 * 12 / max(1, workers) * 0.9


@pytest.mark.parametrize("workers", [0, 1])
def test_what_was_fetched_before_a_run_is_none_of_it(train, seen, workers):
    """By an iterator that goes on in it: no batch, no wait, and nothing of its workers."""
    iterator = iter(DataLoader(Noise(), batch_size=3, num_workers=workers))
    next(iterator)
    om.stop()
    next(iterator)
    if workers:
        while iterator._data_queue.qsize() < 2:
            os.sched_yield()

    again = type(seen)(train())
    rest = list(iterator)
    om.stop()

    assert again.by_label(names.LOADER_BATCHES, names.DATASET) == {"Noise": len(rest)}
    fetched = again.by_label(names.LOADER_FETCHED, names.LOADER_WORKER)
    assert fetched == ({} if workers else {"main": len(rest)})


@pytest.mark.parametrize("persistent", [True, False])
def test_end_of_each_pass(seen, persistent):
    """By what becomes of the workers; without workers nothing ends."""
    loader = DataLoader(Noise(), batch_size=3, num_workers=1, persistent_workers=persistent)
    for _ in range(2):
        pass_through(loader)
    pass_through(DataLoader(Noise(), batch_size=3))
    om.stop()

    found = seen.by_label(names.LOADER_END, names.LOADER_WORKERS)
    assert set(found) == ({"started", "kept"} if persistent else {"started"})
    assert all(spent > 0 for spent in found.values())


@each_way
def test_elements_of_samples_before_they_are_padded(seen, workers):
    """Of the largest tensor of each, of the first batches; other samples have none."""

    class Text(Noise):
        def __getitem__(self, at):
            return torch.ones(()), torch.ones(at + 1)

    def pad(samples):
        return torch.nn.utils.rnn.pad_sequence([text for _, text in samples])

    pass_through(DataLoader(Text(), batch_size=3, num_workers=workers, collate_fn=pad))
    list(DataLoader(["ein", "wort"]))
    om.stop()

    elements = seen.by_label(names.LOADER_ELEMENTS, names.DATASET, names.LOADER_WORKER)
    assert sum(elements.values()) == sum(range(1, 13))
    assert sum(seen.by_label(names.LOADER_SIZED, names.LOADER_WORKER).values()) == 4
    assert {dataset for dataset, _ in elements} == {"Text"}


def test_of_large_batches_some_samples_are_looked_at(seen):
    """Not all of a thousand: those stand for the others."""
    pass_through(DataLoader(Noise(1000), batch_size=1000))
    om.stop()

    (elements,) = seen.by_label(names.LOADER_ELEMENTS, names.DATASET).values()
    assert elements == 3000


def test_ready_batches_are_those_that_wait(seen):
    """Those in the queue when the loop asks; here it asks when four of one worker are there."""
    loader = DataLoader(Noise(24), batch_size=3, num_workers=1, prefetch_factor=4)
    iterator = iter(loader)
    next(iterator)
    while iterator._data_queue.qsize() < 4:
        os.sched_yield()
    next(iterator)
    om.stop()

    assert seen.by_label(names.LOADER_READY, names.DATASET)["Noise"] >= 4.0


def test_iterable_datasets_are_seen(seen):
    """Each worker has its own copy; what ends a copy is no batch."""
    pass_through(DataLoader(Stream(), batch_size=2, num_workers=2))
    om.stop()

    assert seen.by_label(names.LOADER_FETCHED, names.LOADER_WORKER) == {"0": 3.0, "1": 3.0}
    assert seen.by_label(names.LOADER_BATCHES, names.DATASET) == {"Stream": 6.0}


def test_pinning_is_one_for_a_batch(seen):
    """However much is in it; what is copied without a device stands in for tensors."""

    class Pinned:
        def pin_memory(self):
            return "pinned"

    assert pin_memory({"x": Pinned(), "more": [Pinned()]}) == {"x": "pinned", "more": ["pinned"]}
    om.stop()

    assert list(seen.by_label(names.LOADER_PIN)) == [()]


def test_two_loaders_of_a_class_are_two(seen):
    """Training and validation, say."""
    train, test = TensorDataset(torch.ones(4)), TensorDataset(torch.ones(6))
    for dataset in (train, test, train):
        list(DataLoader(dataset, batch_size=2))
    om.stop()

    batches = seen.by_label(names.LOADER_BATCHES, names.DATASET)
    assert batches == {"TensorDataset": 4.0, "TensorDataset 2": 3.0}


@each_way
def test_batches_and_random_streams_are_the_same(seen, workers):
    """Bit for bit, in workers too, and what is drawn afterwards."""

    def drawn():
        random.seed(3)
        torch.manual_seed(3)
        loader = DataLoader(Noise(), batch_size=3, num_workers=workers, shuffle=True)
        return pass_through(loader), torch.rand(2).tolist(), random.random()

    with_us = drawn()
    DataLoaders().switch_off()
    assert with_us == drawn()


@each_way
def test_exceptions_are_the_same(seen, workers):
    """With the same text, and the same lines of the traceback."""

    def raised():
        with pytest.raises(ValueError, match="no sample 0") as caught:
            pass_through(DataLoader(Broken(), batch_size=3, num_workers=workers))
        error = caught.value
        return str(error), traceback.format_tb(error.__traceback__)[1:]

    with_us = raised()
    DataLoaders().switch_off()
    assert with_us == raised()


def test_a_loader_inside_a_dataset_is_part_of_its_batch(seen):
    """What it fetches is not counted beside that."""

    class Outer(Noise):
        def __getitem__(self, at):
            return next(iter(DataLoader(Noise(2), batch_size=2)))

    pass_through(DataLoader(Outer(4), batch_size=2))
    om.stop()

    assert seen.by_label(names.LOADER_BATCHES, names.DATASET) == {"Outer": 2.0}
    assert seen.by_label(names.LOADER_FETCHED, names.DATASET) == {"Outer": 2.0}


def test_workers_have_no_journal(seen):
    """They count in memory that they share: an epoch costs no file."""
    folder = os.path.dirname(seen.recorder.journal.path)
    before = sorted(os.listdir(folder))
    loader = DataLoader(Noise(), batch_size=3, num_workers=2)
    iterator = iter(loader)
    next(iterator)

    assert sorted(os.listdir(folder)) == before


def test_fetchers_are_as_they_were(seen):
    """Who asks one for what it does not have hears the same."""
    fetcher = _MapDatasetFetcher([1], False, int, False)
    assert fetcher.collate_fn is int
    assert fetcher.fetch(0) == 1
    del fetcher.collate_fn
    with pytest.raises(AttributeError, match="has no attribute 'collate_fn'"):
        _ = fetcher.collate_fn
