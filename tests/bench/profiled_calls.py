"""How much longer does a call of a section take while it is profiled?

Each body is a function that is decorated plainly and so that it is profiled, in turn, so that both
see the same machine; shown are medians of the ratio, and of what it takes more.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import otel_mlperf as om

ROUNDS = 40
clock = time.perf_counter_ns


def small(n):
    return n + 1


def calls():
    """20,000 calls of a small function of Python."""
    for i in range(20_000):
        small(i)


def builtins():
    """20,000 calls of a function written in C."""
    for i in range(20_000):
        abs(i)


def loops():
    """A loop that calls nothing."""
    total = 0
    for i in range(100_000):
        total += i


def allocations():
    """20,000 small lists, all kept."""
    return [[i] for i in range(20_000)]


def nothing():
    """No work at all: what begin and end of a profile take."""


def taken_ns(body):
    begun = clock()
    body()
    return clock() - begun


def main():
    with (
        tempfile.TemporaryDirectory() as folder,
        om.start("bench", dir=folder, agent="none", console=False, profiled_calls=ROUNDS),
    ):
        for body in (calls, builtins, loops, allocations, nothing):
            for kind in ("calls", "lines", "memory"):
                plain, profiled = om.span(body), om.span(kind, profile=kind)(body)
                pairs = [(taken_ns(plain), taken_ns(profiled)) for _ in range(ROUNDS)]
                ratio = statistics.median(after / before for before, after in pairs)
                more = statistics.median(after - before for before, after in pairs)
                print(f"{body.__doc__:60} {kind:8} {ratio:6.2f}x  {more / 1e3:+9.0f} µs")


if __name__ == "__main__":
    main()
