"""The number of collectives of an update is recorded, without watching any of them."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.pytorch.loop.collective_count import StepCollectives, count_collectives
from otel_mlperf.pytorch.loop.training_moments import UPDATES

COLLECTIVES = names.COLLECTIVES.name


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    meet = f"file://{tmp_path}/meet"
    distributed.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def train_untouched(model, steps, also=lambda: None):
    """An untouched loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        also()


@pytest.mark.usefixtures("group")
def test_collectives_are_counted_wherever_they_are_asked_for():
    """By the program, in a group of its own, and by DDP where no Python runs."""
    before = count_collectives()
    for _ in range(3):
        distributed.all_reduce(torch.ones(2))
    distributed.barrier()
    own = distributed.new_group([0])
    made = count_collectives()
    distributed.all_reduce(torch.ones(2), group=own)
    alone = count_collectives()
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    first = count_collectives()
    train_untouched(wrapped, 5)

    assert made - before >= 4
    assert alone - made == 1
    assert count_collectives() - first >= 5


@pytest.mark.usefixtures("group")
def test_what_an_update_takes_is_recorded(watched):
    """One bucket of DDP and three of the loop, from the 20th update on."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))

    def also():
        for _ in range(3):
            distributed.all_reduce(torch.ones(1))

    train_untouched(model, UPDATES[1] - 1, also)
    before = watched.counted(COLLECTIVES)
    train_untouched(model, 1, also)

    assert (before, watched.counted(COLLECTIVES)) == (0.0, 4.0)


def test_a_process_alone_has_none(watched):
    """Nothing is recorded of what there is none of."""
    train_untouched(torch.nn.Linear(4, 1), UPDATES[1] + 1)

    assert count_collectives() == 0
    assert watched.counted(COLLECTIVES) == 0.0


def test_a_backend_that_does_not_number_them_is_left_out(group):
    """It says so in its own way; other groups count."""
    world = distributed.distributed_c10d._world

    class Group:
        """Of another backend."""

        def _get_sequence_number_for_group(self):
            raise RuntimeError("does not yet support sequence numbers")

    strange = Group()
    distributed.all_reduce(torch.ones(1))
    counted = count_collectives()
    world.pg_map[strange] = None
    try:
        assert count_collectives() == counted > 0
    finally:
        del world.pg_map[strange]


@pytest.mark.usefixtures("group")
def test_collectives_of_steps_that_the_program_reports_are_counted(train):
    """Three for each of them, whatever its sections are."""
    trained = train()
    counting = trained.recorder.kept[StepCollectives]
    distributed.barrier()
    for _ in range(30):
        with om.step():
            counting.look(0)
            for _ in range(3):
                distributed.all_reduce(torch.ones(2))

    assert trained.counted(COLLECTIVES) == 3.0
