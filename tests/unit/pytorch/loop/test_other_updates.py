"""Optimizer steps that no loop contains are counted, and only those."""

from __future__ import annotations

import asyncio
import threading

import torch

from otel_mlperf import names

STEPS = 5


def train(steps=STEPS):
    """An untouched loop that lets other tasks run in each of its turns."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).sum()
        yield
        loss.backward()
        optimizer.step()


async def train_in_turns():
    for _ in train():
        await asyncio.sleep(0)


async def gather(tasks):
    await asyncio.gather(*(train_in_turns() for _ in range(tasks)))


def elsewhere(watched):
    watched.run.stop()
    return [watched.counted(one.name) for one in (names.OTHER_UPDATES, names.OTHER_LOOPS)]


def test_steps_of_other_threads_are_counted(watched):
    """Each once, and how many threads made them."""
    threads = [threading.Thread(target=lambda: list(train())) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()

    updates, loops = elsewhere(watched)
    assert updates == 2 * STEPS
    assert loops in {1, 2}  # the second thread may get the first one's number


def test_a_loop_in_the_main_thread_is_nowhere_else(watched):
    """Nor is one in a single task of asyncio, or whose optimizer steps inside of its backward."""
    list(train())
    asyncio.run(gather(1))
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    for _ in range(STEPS):
        (weight * 2).sum().backward()

    assert elsewhere(watched) == [0.0, 0.0]


def test_steps_of_tasks_in_turns_are_all_accounted_for(watched):
    """Those of the second training are in steps of the first one or counted: here all of them."""
    asyncio.run(gather(2))

    assert elsewhere(watched)[0] == STEPS
