"""Manual program and destination for tests of trackers."""

from __future__ import annotations

import os
import signal

import numpy as np
from by_hand import MS, TRACK

from otel_mlperf.agent.delivery.destination import Batch
from otel_mlperf.agent.model.scalar_item import ScalarItem
from otel_mlperf.journal.layout import Kind


def log(program, time_ms, value, number):
    """What ``log(loss=value)`` writes in a step."""
    bits = int(np.float64(value).view(np.uint64))
    row = (time_ms * MS, bits, 0, number, program.run, TRACK, program.name("loss"), Kind.VALUE)
    program.journal.put(*row)


def train(program, steps):
    """Steps of different length, each with a loss."""
    for i in steps:
        program.step(i * 10, length=5 + i % 4)
        log(program, i * 10 + 9, 1 / (i + 1), 100 + i)


def scalar(number, value=0.5, name="loss", **more):
    """A point of a curve, in the step of that number."""
    given = {"kind": "value", "phase": "train", "rank": 0, "time_ns": number * MS} | more
    return ScalarItem(name=name, number=number, value=value, **given)


def ended(outcome, **more):
    """How a process ended."""
    order = ["running", "finished", "interrupted", "killed", "failed"]
    given = {"kind": "outcome", "phase": "", "text": outcome} | more
    return scalar(9, order.index(outcome), "outcome", **given)


def batch(number, *scalars):
    """Points that are delivered together."""
    return Batch(number=number, signal="scalars", items=len(scalars), scalars=[*scalars])


def page(content):
    """The page of the run."""
    return Batch(number=1, signal="reports", items=1, report=content)


def last_acknowledged(make_destination, batches):
    """Offers batches in a process of its own, killed amid them; the last that it took, or 0."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            own = make_destination()
            for one in batches:
                own.accept(one)
                os.write(write, one.number.to_bytes(2, "big"))
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as told:
        heard = told.read(2)
        os.kill(pid, signal.SIGKILL)
        heard += told.read()
    os.waitpid(pid, 0)
    return int.from_bytes(heard[-2:], "big")
