"""A sensor that fails or hangs harms nothing else."""

from __future__ import annotations

import os
import threading

from servers.running import PATIENCE_S

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Measurement
from otel_mlperf.sensors.timed_sensor import TimedSensor

LOAD = Measurement("load", {}, 1.0)


class Scripted:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.closed = threading.Event()
        self.go_on = threading.Event()

    def read(self):
        answer = self.answers.pop(0)
        if answer == "hang":
            self.go_on.wait()
            return [LOAD]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.closed.set()


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def health(found):
    return {m.metric: m.value for m in found if m.labels == {names.SAMPLER: "load"}}


def test_a_pass_is_taken_once_with_how_it_went():
    """Values come with the time that the pass took and the count of late ones, and only once."""
    timed = TimedSensor("load", Scripted([LOAD]), deadline_s=30)
    found = timed.read()

    assert found[0] == LOAD
    assert health(found)[names.SAMPLER_LATE.name] == 0
    assert 0 < health(found)[names.SAMPLER_DURATION.name] < 30
    assert timed.take() is None
    timed.close()


def test_what_a_sensor_raises_is_logged_once_and_ends_nothing(caplog):
    """A broken pass says nothing; the next one is read; the log is told the first time."""
    timed = TimedSensor("load", Scripted(ValueError("x"), ValueError("x"), [LOAD]), deadline_s=30)
    found = [timed.read() for _ in range(3)]

    assert [LOAD in one for one in found] == [False, False, True]
    assert [record.message for record in caplog.records] == ["reading the load sensor failed"]
    timed.close()


def test_what_comes_after_the_deadline_is_dropped():
    """A pass that took too long is late, also when its answer is there when it is asked for."""
    clock, sensor = Clock(), Scripted("hang", [LOAD])
    timed = TimedSensor("load", sensor, deadline_s=1, clock=clock)
    timed.begin()
    clock.now_s = 5.0
    sensor.go_on.set()
    late = taken(timed)
    clock.now_s = 6.0
    # No pass begins before the one that hung is over; the one after it is in time by this clock.
    while not timed.begin():
        taken(timed)
    fresh = taken(timed)
    timed.close()

    assert LOAD not in late
    assert timed.late >= 1
    assert LOAD in fresh


def taken(timed):
    """What the pass gives, whenever that is."""
    while (found := timed.take()) is None:
        os.sched_yield()
    return found


def test_closing_closes_the_sensor_in_its_own_thread():
    """The library that the thread uses is given back by it, also when it hung until then."""
    calm, hanging = Scripted([LOAD]), Scripted("hang")
    timed = TimedSensor("load", calm, deadline_s=30)
    timed.read()
    timed.close()
    stuck = TimedSensor("load", hanging, deadline_s=30)
    stuck.begin()
    stuck.close()

    assert calm.closed.is_set()
    assert not hanging.closed.is_set()
    hanging.go_on.set()
    assert hanging.closed.wait(PATIENCE_S)
