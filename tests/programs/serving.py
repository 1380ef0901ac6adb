"""Serves 100,000 requests in threads and in tasks, by a clock that only they move.

So it knows how long each takes, to the nanosecond, and writes that into the file --count.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

THREADS, BY_THREAD, TASKS, BY_TASK = 4, 15_000, 200, 200
BOUND_S = 0.05


class Clock(threading.local):
    """What a thread has waited, after the moment at which the program began."""

    now_ns = time.monotonic_ns()


clock = Clock()
time.monotonic_ns = lambda: clock.now_ns

import otel_mlperf as om  # noqa: E402 - it takes the clock as it finds it


def length_ns(chosen):
    """Mostly some 20 ms, with a long tail."""
    return round(chosen.lognormvariate(17, 0.7))


def in_thread(seed):
    """Requests one after the other."""
    chosen, took = random.Random(seed), []
    for _ in range(BY_THREAD):
        with om.request("predict", within_s=BOUND_S):
            length = length_ns(chosen)
            clock.now_ns += length
        took.append(length)
    return took


async def in_task(seed, took):
    """Requests while those of other tasks are open."""
    chosen = random.Random(seed)
    for _ in range(BY_TASK):
        with om.request("predict", within_s=BOUND_S):
            began = clock.now_ns
            clock.now_ns += length_ns(chosen) // TASKS
            await asyncio.sleep(0)
            clock.now_ns += length_ns(chosen) // 10
            length = clock.now_ns - began
        took.append(length)


async def tasks(took):
    """All at once."""
    await asyncio.gather(*(in_task(1000 + seed, took) for seed in range(TASKS)))


with om.start("serving"):
    with ThreadPoolExecutor(THREADS) as pool:
        all_ns = list(chain.from_iterable(pool.map(in_thread, range(THREADS))))
    asyncio.run(tasks(all_ns))
Path(sys.argv[2]).write_text(json.dumps(all_ns))
