"""The host is read as a whole, and nothing that it lacks disturbs the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_files import values
from open_files import open_files

from otel_mlperf import names
from otel_mlperf.sensors.host.host_sensor import HostSensor


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
def test_without_proc_psutil_reads_what_it_can(tmp_path):
    """What only Linux has is absent: stalls, paging, frequency and temperature."""
    linux = {one.metric for one in read("detailed")}
    elsewhere = {one.metric for one in read("detailed", proc=tmp_path / "none", sys=tmp_path)}

    linux_only = ("linux.psi", "system.paging.faults", "system.paging.operations", "hw.temperature")
    linux_only += ("system.cpu.frequency", "system.disk")  # of disks /sys says which are real
    assert elsewhere == {name for name in linux if not name.startswith(linux_only)}
    assert {names.SYSTEM_CPU_TIME.name, names.SYSTEM_MEMORY.name, names.LOAD_1M.name} <= elsewhere
    assert {names.SYSTEM_MEMORY_LIMIT.name, names.SYSTEM_UPTIME.name} <= elsewhere


def test_uptime_is_the_kernels():
    """The first number of the file, from level detailed on."""
    before_s = float(Path("/proc/uptime").read_text().split()[0])
    found = values(read("detailed"))[names.SYSTEM_UPTIME.name,]

    assert before_s <= found <= float(Path("/proc/uptime").read_text().split()[0]) + 0.01
    assert (names.SYSTEM_UPTIME.name,) not in values(read("basic"))


def test_closing_gives_every_descriptor_back():
    """Reading keeps files open; closing leaves none."""
    before = open_files()
    sensor = HostSensor("comprehensive")
    sensor.read()
    kept = (open_files() - before).total()
    sensor.close()

    assert 1 <= kept <= 8
    assert not open_files() - before
