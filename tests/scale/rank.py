"""What does one simulated rank do? It trains nothing, and records all that a rank would.

Steps with the sections that most loops have, values of its own, and a fault where it is told to.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import otel_mlperf as om

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEP_S = 0.25
SECTIONS = {"forward": 0.3, "loss": 0.05, "backward": 0.4, "optimizer": 0.1}
"""Each with its share of a step; the rest is spent waiting for data."""
FAULTS = {1: "error", 2: "slow", 3: "killed"}
"""By rank, where there are as many: what goes wrong there."""
FAULTY_STEP = 20
"""The number of the step in which it does, behind those that every rank keeps."""
_TIMES_SLOWER = 3


def train(name: str, is_over: Callable[[], bool]) -> None:
    """Steps until ``is_over``, under this process's rank."""
    fault = FAULTS.get(int(os.environ["RANK"]))
    tokens, rate = om.counter("tokens"), om.gauge("learning_rate")
    with om.start(name):
        numbers = itertools.count()
        while not is_over():
            # A step that fails ends its loop, as it would anywhere; the next one goes on.
            with suppress(ArithmeticError):
                for n in om.steps(_batches(numbers, is_over)):
                    _step(fault if n == FAULTY_STEP else None)
                    tokens.add(4096)
                    rate.set(0.001)
                    om.log(loss=1 / (n + 1))


def _batches(numbers: Iterator[int], is_over: Callable[[], bool]) -> Iterator[int]:
    while not is_over():
        time.sleep(STEP_S * (1 - sum(SECTIONS.values())))
        yield next(numbers)


def _step(fault: str | None) -> None:
    for section, share in SECTIONS.items():
        with om.span(section):
            time.sleep(STEP_S * share * (_TIMES_SLOWER if fault == "slow" else 1))
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "error":
                raise ArithmeticError("the loss is not a number")
