"""A sensor of another package is made as it declares, and distinguished from what is none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from otel_mlperf.sensors.sensor_kind import SensorKind, StartedSensor


class Quiet:
    """A sensor with nothing to say; itself it is no SensorKind."""

    def __init__(self, surroundings):
        self.surroundings = surroundings

    def read(self):
        return []

    def close(self):
        self.surroundings = None


SURROUNDINGS = SimpleNamespace(clock=lambda: 0.0, level="basic")


def test_an_entry_point_that_names_the_sensor_itself_is_told_so():
    """The mistake that is made first; not that a class has no level."""
    with pytest.raises(TypeError, match=r"found <class '.*Quiet'>, expected a SensorKind"):
        StartedSensor(lambda: Quiet, SURROUNDINGS).read()


def test_a_kind_is_made_and_read():
    """By the first reading."""
    assert StartedSensor(lambda: SensorKind("quiet", Quiet), SURROUNDINGS).read() == []
