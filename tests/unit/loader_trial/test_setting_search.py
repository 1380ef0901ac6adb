"""The best setting of a loader is found, by a trial of each setting."""

from __future__ import annotations

import pytest

from otel_mlperf.errors import UsageError
from otel_mlperf.loader_trial.loader_settings import (
    Setting,
    Trial,
    find_best,
    parse_counts,
    pasted,
    try_settings,
    usual_counts,
)

NOW = Setting(num_workers=0)
CPUS = 4


def trial(workers, batch_ns, noise=0.01, prefetch=None):
    setting = Setting(num_workers=workers, prefetch_factor=prefetch)
    return Trial(
        setting=setting, batches=100, batch_ns=batch_ns, noise=noise, samples_per_s=None,
        first_batch_ns=0,
    )  # fmt: skip


def tried(cost, counts=None, now=NOW, cpus=CPUS):
    """The trials of a loader whose batch costs so many ns with so many workers."""

    def measure(setting):
        return trial(setting.num_workers, cost(setting.num_workers), 0.01, setting.prefetch_factor)

    return try_settings(measure, counts, now, cpus)


def numbers(trials):
    return [trial.setting.num_workers for trial in trials if not trial.setting.prefetch_factor]


def test_transforms_that_need_the_cpu_want_as_many_workers_as_cpus():
    """With twice as many no CPU is left: that is tried once, and no further."""
    trials = tried(lambda workers: 8e6 / min(max(workers, 1), CPUS))

    assert numbers(trials) == [0, 1, 2, 4, 8]
    assert pasted(find_best(trials).setting) == (
        "DataLoader(..., num_workers=4, persistent_workers=True)"
    )


def test_a_small_dataset_in_memory_wants_no_workers():
    """A batch costs less than its way between two processes."""
    trials = tried(lambda workers: 400e3 if workers else 50e3)

    assert pasted(find_best(trials).setting) == "DataLoader(..., num_workers=0)"


def test_a_slow_disk_wants_many_workers():
    """They only wait: more than there are CPUs, as long as it is worth it."""
    trials = tried(lambda workers: 1e9 / min(max(workers, 1), 24))

    assert numbers(trials) == [0, 1, 2, 4, 8, 16, 32]
    assert find_best(trials).setting == Setting(num_workers=32)


@pytest.mark.parametrize(("noise", "best"), [(0.01, 4), (0.2, 2)])
def test_within_the_noise_fewer_workers_are_better(noise, best):
    """A tenth more is something where the machine is quiet."""
    trials = [trial(0, 4e6), trial(2, 1.1e6, noise), trial(4, 1e6, noise)]

    assert find_best(trials).setting == Setting(num_workers=best)


def test_deeper_prefetching_is_tried_with_the_best():
    """It is taken where it is faster, and with its word in the line."""

    def measure(setting):
        batch_ns = 1e6 if setting.prefetch_factor else 2e6 / (1 + setting.num_workers / 4)
        return trial(setting.num_workers, batch_ns, 0.01, setting.prefetch_factor)

    best = find_best(try_settings(measure, [1], NOW, CPUS)).setting
    assert pasted(best) == (
        "DataLoader(..., num_workers=1, prefetch_factor=4, persistent_workers=True)"
    )


def test_the_programs_own_number_is_always_tried():
    """Those that were asked for, that, and no others."""
    assert numbers(tried(lambda _: 1e6, [4, 2, 4], Setting(num_workers=3))) == [2, 3, 4]


@pytest.mark.parametrize(("cpus", "counts"), [(1, [0, 1]), (2, [0, 1, 2]), (6, [0, 1, 2, 4, 6])])
def test_usual_counts(cpus, counts):
    """Doubled, up to the CPUs."""
    assert usual_counts(cpus) == counts


def test_counts_of_the_command_line():
    """Whole numbers; anything else is named."""
    assert parse_counts("0, 2,4") == [0, 2, 4]
    for text in ("", "2,", "-1", "two", "1.5"):
        with pytest.raises(UsageError, match="is not a number of workers"):
            parse_counts(text)
