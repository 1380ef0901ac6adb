"""Unix and monotonic time are read as one moment, also on a busy machine."""

from __future__ import annotations

from otel_mlperf.recorder.lifecycle.clocks import read_clocks

OFFSET_NS = 1_700_000_000_000_000_000
SLEEP_NS = 4_000_000
"""For which a scheduler may take the CPU away between two readings."""


class Machine:
    """Its monotonic clock advances by a reading's time, and by a preemption before some of them."""

    def __init__(self, preempted):
        self.now_ns, self.readings, self.preempted = 1_000_000, 0, preempted

    def monotonic(self):
        self.readings += 1
        self.now_ns += 100 + SLEEP_NS * (self.readings in self.preempted)
        return self.now_ns

    def unix(self):
        return OFFSET_NS + self.monotonic()


def test_a_preempted_thread_shifts_no_times():
    """Four of five pairs are torn apart by milliseconds; the offset is off by one reading."""
    machine = Machine(preempted={2, 5, 9, 15})

    unix_ns, monotonic_ns = read_clocks(machine.unix, machine.monotonic)

    assert abs(unix_ns - monotonic_ns - OFFSET_NS) <= 100
