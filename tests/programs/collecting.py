"""Trains in steps, and in one of them collects much garbage while it waits for its batch."""

from __future__ import annotations

import argparse
import gc

import otel_mlperf as om

STEP = 3
OBJECTS = 500_000


def batches():
    """Ten batches; to make one of them leaves much for the collector to look at."""
    for number in range(10):
        if number == STEP:
            kept = [[] for _ in range(OBJECTS)]
            gc.collect()
            del kept
        yield number


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count")
    parser.parse_args()
    gc.disable()
    with om.start("collecting"):
        for _ in om.steps(batches()):
            with om.span("forward"):
                pass
