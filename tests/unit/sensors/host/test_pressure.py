"""Stalls are the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import of, values, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host.host_sensor import PressureSensor, parse_pressure

CPU = """\
some avg10=15.01 avg60=16.72 avg300=10.44 total=2216078233
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""
IO = """\
some avg10=100.00 avg60=0.63 avg300=0.74 total=2000000
full avg10=0.14 avg60=0.38 avg300=0.52 total=1000000
"""


def read(root, level="basic"):
    sensor = PressureSensor(level, root)
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


def test_faults_and_swapped_pages_are_counted(tmp_path):
    """A fault is minor or major, never both; from level detailed on."""
    vmstat = "nr_free_pages 1\npgfault 1000\npgmajfault 40\npswpin 5\npswpout 6\n"
    write_files(tmp_path, {"vmstat": vmstat})

    assert read(tmp_path) == []
    assert values(read(tmp_path, "detailed")) == {
        (names.PAGING_FAULTS.name, "minor"): 960,
        (names.PAGING_FAULTS.name, "major"): 40,
        (names.PAGING_OPERATIONS.name, "in"): 5,
        (names.PAGING_OPERATIONS.name, "out"): 6,
    }


def test_faults_of_this_machine_are_the_kernels():
    """Each count lies between two readings of ``/proc/vmstat``."""
    before = kernel_counts()
    found = values(read(Path("/proc"), "detailed"))
    after = kernel_counts()

    for metric, label, key in (
        (names.PAGING_FAULTS, "major", "pgmajfault"),
        (names.PAGING_OPERATIONS, "in", "pswpin"),
        (names.PAGING_OPERATIONS, "out", "pswpout"),
    ):
        assert before[key] <= found[metric.name, label] <= after[key]
    assert found[names.PAGING_FAULTS.name, "minor"] <= after["pgfault"] - before["pgmajfault"]


def kernel_counts():
    lines = Path("/proc/vmstat").read_text().splitlines()
    return {name: int(count) for name, count in map(str.split, lines)}


def test_a_kernel_without_pressure_has_none(tmp_path):
    """Absent, not zero."""
    assert read(tmp_path, "detailed") == []


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
