"""Stalls are the kernel's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import of, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host.pressure import PressureSensor, parse_pressure

CPU = """\
some avg10=15.01 avg60=16.72 avg300=10.44 total=2216078233
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""
IO = """\
some avg10=100.00 avg60=0.63 avg300=0.74 total=2000000
full avg10=0.14 avg60=0.38 avg300=0.52 total=1000000
"""


def read(root):
    sensor = PressureSensor(root)
    found = sensor.read()
    sensor.close()
    return found


def test_stalls_are_shares_and_seconds(tmp_path):
    """Percent becomes a ratio, microseconds become seconds; ``full`` of CPUs means nothing."""
    found = read(write_files(tmp_path, {"pressure/cpu": CPU, "pressure/io": IO}))

    assert of(names.PSI_AVERAGE, found) == {
        ("cpu", "some"): pytest.approx(0.1501),
        ("io", "some"): 1.0,
        ("io", "full"): pytest.approx(0.0014),
    }
    assert of(names.PSI_TIME, found) == {
        ("cpu", "some"): 2216.078233,
        ("io", "some"): 2.0,
        ("io", "full"): 1.0,
    }


def test_a_kernel_without_pressure_has_none(tmp_path):
    """Absent, not zero."""
    assert read(tmp_path) == []


@given(
    st.binary(max_size=200) | st.text("somefulavgt=.0123456789 \n", max_size=200).map(str.encode)
)
def test_any_text_gives_stalls_or_none(text):
    """Parsing never raises."""
    for stall in parse_pressure(text).values():
        assert stall.average_ratio >= 0
        assert stall.total_s >= 0


@given(st.integers(0, 10_000), st.integers(0, 2**50))
def test_every_regular_stall_is_read(hundredths, total):
    """What the kernel prints is what is found."""
    line = f"some avg10={hundredths / 100:.2f} avg60=0.00 avg300=0.00 total={total}\n"

    (found,) = parse_pressure(line.encode()).values()
    assert found == (pytest.approx(hundredths / 10_000), total / 1e6)
