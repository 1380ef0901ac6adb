"""Is the host read as a whole, and does nothing that it lacks disturb the rest?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import values, write_files
from open_files import open_files

from otel_mlperf import names
from otel_mlperf.sensors.host.host_sensor import HostSensor
from otel_mlperf.sensors.kernel_files import parse_uptime


def read(level, **roots):
    sensor = HostSensor(level, **roots)
    found = sensor.read()
    sensor.close()
    return found


def test_levels_add_to_each_other():
    """Each gives the metrics of the one before it, and more series."""
    basic, detailed, most = map(read, ("basic", "detailed", "comprehensive"))

    assert {m.metric for m in basic} < {m.metric for m in detailed}
    assert {m.metric for m in detailed} <= {m.metric for m in most}
    assert len(values(most)) >= len(values(detailed)) > len(values(basic))


def test_points_carry_the_labels_that_the_vocabulary_names():
    """Whatever the level, a point has no label that its metric is not documented with."""
    labels = {metric.name: set(metric.labels) for metric in names.METRICS}
    for level in ("basic", "detailed", "comprehensive"):
        for point in read(level):
            assert set(point.labels) <= labels[point.metric]
            assert (point.pid, point.device) == (0, "")


@pytest.mark.fault("F74")
def test_an_empty_machine_says_nothing(tmp_path):
    """Without any file there is no reading, and no error."""
    assert read("comprehensive", proc=tmp_path, sys=tmp_path) == []


def test_uptime_is_in_seconds(tmp_path):
    """The first number of the file, from level detailed on."""
    write_files(tmp_path, {"uptime": "13260.08 20000.00\n"})

    found = values(read("detailed", proc=tmp_path, sys=tmp_path))
    assert found == {(names.SYSTEM_UPTIME.name,): 13260.08}
    assert read("basic", proc=tmp_path, sys=tmp_path) == []


def test_closing_gives_every_descriptor_back():
    """Reading keeps files open; closing leaves none."""
    before = open_files()
    sensor = HostSensor("comprehensive")
    sensor.read()
    kept = (open_files() - before).total()
    sensor.close()

    assert 5 <= kept <= 12
    assert not open_files() - before


@given(st.binary(max_size=40))
def test_any_text_gives_an_uptime_or_none(text):
    """Parsing never raises."""
    found = parse_uptime(text)

    assert found is None or found >= 0
