"""How often is something swallowed, left open or hung when a signal handler raises at random?

    python tests/load/interrupts.py --interrupts 10000

Interrupts each construct so often by a timer, and prints a line for each.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import otel_mlperf as om
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HUNG_S = 60
_LONGEST_S = 6e-4
_LATE_S = 0.05
"""After that the timer is set anew: CPython 3.11 may take a signal and look at it much later."""


@om.span
def function() -> None:
    pass


@om.span
def generator() -> Iterator[int]:
    yield 1
    yield 2


def spans() -> None:
    with om.span("outer"), om.span("inner", rows=1):
        pass


def added_up() -> None:
    with om.span("tiny", aggregate=True):
        pass


def generators() -> None:
    for _ in generator():
        pass


def step() -> None:
    with om.step(), om.span("forward"):
        pass


def steps() -> None:
    for _ in om.steps(range(4)):
        with om.span("forward"):
            pass


def epochs() -> None:
    for _ in om.epochs(2):
        for _ in om.steps(range(2)):
            pass


def phase() -> None:
    with om.phase("validate"), om.step():
        pass


def values() -> None:
    om.log(loss=0.5)
    om.counter("c").add(1)
    om.histogram("h").record(2.0)


CONSTRUCTS = [spans, function, added_up, generators, step, steps, epochs, phase, values]


def interrupt(use: Callable[[], None], most: int, recorder: Any) -> tuple[int, int, int]:
    """Interrupts a construct so often: how many were raised, swallowed, and left something open."""
    raised = swallowed = wrong = 0
    is_armed = False

    def handle(*_: Any) -> None:
        nonlocal raised
        if is_armed:
            raised += 1
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, handle)
    before = CURRENT.get()
    while raised < most:
        count, has_arrived = raised, False
        try:
            is_armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-6, _LONGEST_S))
            late = time.monotonic() + _LATE_S
            while raised == count and time.monotonic() < late:
                use()
            len("a call, for what a finalizer has held back")
            is_armed = False
        except KeyboardInterrupt:
            has_arrived = True
        is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        swallowed += raised - count - has_arrived
        recorder.stepping.abandoned.settle(None)
        if (
            CURRENT.get() is not before
            or recorder.parents.steps
            or recorder.registry.phase != "train"
        ):
            wrong += 1
            CURRENT.set(before)
            recorder.parents.steps.clear()
        faulthandler.dump_traceback_later(_HUNG_S, exit=True)
    return raised, swallowed, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interrupts", type=int, default=10_000)
    most = parser.parse_args().interrupts
    are_all_well = True
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OTEL_MLPERF_DIR"] = folder
        run = om.start("interrupts", agent="none", console=False, readings="none")
        print(f"{'construct':12} {'interrupts':>10} {'swallowed':>10} {'left open':>10}")
        for use in CONSTRUCTS:
            counts = interrupt(use, most, run._recorder)
            are_all_well = are_all_well and not any(counts[1:])
            print(f"{use.__name__:12}", *(f"{count:10}" for count in counts), flush=True)
        run.stop()
    return 0 if are_all_well else 1


if __name__ == "__main__":
    sys.exit(main())
