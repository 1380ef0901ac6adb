"""The resource use of a run's process is known, also of a short run."""

from __future__ import annotations

import os
import resource
import time

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.recorder.core.used_so_far import PeakSinceStart
from otel_mlperf.recorder.lifecycle.process_use import read_age_s


def told(recording):
    """CPU time and peak, as the journal has them."""
    floats = recording.journal.floats
    of = recording.recorder.cells._shared
    return [
        next(floats[word + 1] for content, word in of.items() if content[2] == metric.name)
        for metric in (names.RUN_CPU, names.RUN_MEMORY_PEAK)
    ]


def test_at_the_end_of_a_short_run(start):
    """CPU time is that of all threads since the begin; the peak is what is resident at least."""
    began = time.process_time()
    recording = start(readings="basic")
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass
    om.stop()
    used = time.process_time() - began

    cpu_s, peak = told(recording)
    assert 0.02 <= cpu_s <= used
    assert 0 < peak <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_a_later_run_has_a_peak_of_its_own(start):
    """What an earlier run of the process had at most is no memory of this one."""
    block = bytearray(200 << 20)
    del block
    start(readings="basic")
    om.stop()
    recording = start(readings="basic")
    om.stop()

    assert told(recording)[1] < (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - (
        100 << 20
    )


def test_a_peak_since_the_start_follows_the_process_where_it_is_higher():
    """Up to the peak of before it is the highest that was read; beyond, the kernel's own."""
    peak = PeakSinceStart(500)

    assert [peak.update(500, 100), peak.update(500, 80), peak.update(600, 90)] == [100, 100, 600]
    assert peak.update(600, 50) == 600


def test_while_it_runs(start):
    """It is counted as steps go by: a run that is killed has it."""
    recording = start(readings="basic")
    with om.step():
        pass
    with om.step():
        pass

    assert told(recording)[1] > 0


def test_without_readings(start):
    """Who wants nothing read gets nothing."""
    recording = start(readings="none")
    with om.step():
        pass
    om.stop()

    assert not recording.recorder.cells._shared


def test_age_of_a_process(tmp_path):
    """From when the kernel says that it began, whatever it is called; unknown where nobody says."""
    ticks = os.sysconf("SC_CLK_TCK")
    began = int((time.clock_gettime(time.CLOCK_BOOTTIME) - 5) * ticks)
    stat = tmp_path / "stat"
    fields = ["0"] * 19
    stat.write_text(f"7 (a) b) {' '.join(fields)} {began} 0")

    assert 5 <= read_age_s(stat) < 60
    assert read_age_s(tmp_path / "none") is None
    assert 0 < read_age_s() < time.clock_gettime(time.CLOCK_BOOTTIME)
