"""A run observes the DataLoaders of its program without a request, and only where it may."""

from __future__ import annotations

from torch.utils.data import DataLoader, Dataset

import otel_mlperf as om
from otel_mlperf import names


class Text(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        return at


class Pictures(Text):
    """Another class, which has a word of its own."""


def seen_by(run, seen_in):
    """Batches that the loops got and that were fetched, by dataset."""
    om.stop()
    found = seen_in(run)
    got = found.by_label(names.LOADER_BATCHES, names.DATASET)
    return got, found.by_label(names.LOADER_FETCHED, names.DATASET)


def test_a_run_sees_loaders_that_steps_does_not(train, seen_in):
    """Whatever is put around one, or in a loop that says its steps otherwise."""
    run = train()

    for _ in om.steps(enumerate(DataLoader(Text(4), batch_size=2))):
        pass
    for _ in DataLoader(Pictures(6), batch_size=2):
        with om.step():
            pass

    batches = {"Text": 2.0, "Pictures": 3.0}
    assert seen_by(run, seen_in) == (batches, batches)


def test_all_batches_are_counted_though_later_ones_are_looked_into_now_and_then(train, seen_in):
    """In the process itself the loop waits for a look: one in eight stands for the others."""
    run = train()

    for _ in om.steps(DataLoader(Text(500), batch_size=1)):
        pass

    assert seen_by(run, seen_in) == ({"Text": 500.0}, {"Text": 500.0})


def test_settings_of_one_run_are_those_of_no_other(train, seen_in):
    """Runs of one process, one after the other, with the same loader."""
    loader, found = DataLoader(Text(4), batch_size=2), []

    for off in ("", "dataloader", ""):
        run = train(disabled_integrations=off)
        list(loader)
        found.append(seen_by(run, seen_in))

    on = ({"Text": 2.0}, {"Text": 2.0})
    assert found == [on, ({}, {}), on]
