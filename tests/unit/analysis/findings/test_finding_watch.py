"""A running run is judged now and then, and seldom if that is expensive."""

from __future__ import annotations

from run_folders import MS, RunFolderBuilder, S

from otel_mlperf.analysis.findings.finding_watch import FindingWatch
from otel_mlperf.store.run_folders import read_run


class Clock:
    """Seconds that pass when they are told to; each look at it takes some."""

    def __init__(self, a_look_s=0.0):
        self.now_s, self._a_look_s = 0.0, a_look_s

    def __call__(self):
        self.now_s += self._a_look_s
        return int(self.now_s * S)


def waiting_run(folder):
    """A run that waits for data nearly all of its time, and has not ended."""
    run = RunFolderBuilder(folder)
    for n in range(60):
        run.step(n, n * 100 * MS, {"data.load": 90 * MS, "forward": 5 * MS})
    run.process()
    return run


def test_a_run_that_goes_on_has_findings(tmp_path):
    """Those that it would have if it ended now."""
    watch = FindingWatch(read_run(waiting_run(tmp_path).write()), Clock())

    assert watch.look()[0].id == "data_loading"


def test_it_is_not_judged_again_at_once(tmp_path):
    """For a quarter of a minute, or twenty times what it took, the last word counts."""
    path = waiting_run(tmp_path).write()
    clock = Clock()
    watch = FindingWatch(read_run(path), clock)
    first = watch.look()
    clock.now_s = 14.0
    assert watch.look() is first
    clock.now_s = 16.0
    assert watch.look() is not first

    slow = Clock(a_look_s=3.0)
    watch = FindingWatch(read_run(path), slow)
    first = watch.look()
    slow.now_s = 55.0
    assert watch.look() is first


def test_a_run_of_which_nothing_is_known_has_none(tmp_path):
    """It has just begun."""
    assert FindingWatch(read_run(RunFolderBuilder(tmp_path).write()), Clock()).look() == []
