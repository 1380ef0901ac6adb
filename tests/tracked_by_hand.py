"""What do tests of trackers have a program by hand do, and a destination take?"""

from __future__ import annotations

import numpy as np
from by_hand import MS, TRACK

from otel_mlperf.agent.delivery.destination import Batch
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


def batch(number, *scalars):
    """Points that are delivered together."""
    return Batch(number=number, signal="scalars", items=len(scalars), scalars=[*scalars])
