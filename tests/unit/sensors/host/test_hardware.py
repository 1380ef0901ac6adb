"""Frequency and temperatures of CPUs are those of the drivers."""

from __future__ import annotations

import pytest
from kernel_files import of, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host.devices import HardwareSensor


def test_frequency_is_the_mean_of_the_cpus(tmp_path):
    """In hertz, of the drivers' files; where there are none, of cpuinfo."""
    write_files(tmp_path, {"cpuinfo": "cpu MHz\t\t: 1000.0\nflags: x\ncpu MHz\t\t: 2000.500\n"})
    assert of(names.SYSTEM_CPU_FREQUENCY, HardwareSensor(tmp_path, tmp_path / "sys").read()) == {
        (): pytest.approx(1_500_250_000)
    }
    folder = "sys/devices/system/cpu"
    for cpu, kilohertz in (("cpu0", 3_000_000), ("cpu1", 1_000_000)):
        write_files(tmp_path, {f"{folder}/{cpu}/cpufreq/scaling_cur_freq": f"{kilohertz}\n"})

    found = of(names.SYSTEM_CPU_FREQUENCY, HardwareSensor(tmp_path, tmp_path / "sys").read())
    assert found == {(): 2e9}


CORETEMP = {
    "class/hwmon/hwmon3/name": "coretemp\n",
    "class/hwmon/hwmon3/temp1_input": "61000\n",
    "class/hwmon/hwmon3/temp1_label": "Package id 0\n",
    "class/hwmon/hwmon3/temp2_input": "59000\n",
    "class/hwmon/hwmon3/temp2_label": "Core 0\n",
    "class/hwmon/hwmon4/name": "nvme\n",
    "class/hwmon/hwmon4/temp1_input": "35000\n",
}
ZONES = {
    "class/thermal/thermal_zone0/type": "acpitz\n",
    "class/thermal/thermal_zone0/temp": "20000\n",
    "class/thermal/thermal_zone1/type": "x86_pkg_temp\n",
    "class/thermal/thermal_zone1/temp": "-1500\n",
}


def read(sys):
    return HardwareSensor(sys, sys).read()


def test_the_package_is_read_and_its_cores_are_not(tmp_path):
    """One series for each package, however many cores; disks have sensors too, left out here."""
    found = read(write_files(tmp_path, CORETEMP | ZONES))

    assert of(names.HW_TEMPERATURE, found) == {("hwmon3/coretemp", "Package id 0"): 61.0}


def test_thermal_zones_serve_where_no_driver_does(tmp_path):
    """Degrees below zero are degrees."""
    found = read(write_files(tmp_path, ZONES))

    assert of(names.HW_TEMPERATURE, found) == {("thermal_zone1", "x86_pkg_temp"): -1.5}


@pytest.mark.fault("F74")
def test_a_sensor_that_does_not_answer_is_absent(tmp_path):
    """So is one that answers nonsense, and every sensor of a machine without any."""
    files = CORETEMP | {"class/hwmon/hwmon3/temp1_input": "N/A\n"}

    assert read(write_files(tmp_path, files)) == []
    assert read(tmp_path / "nowhere") == []
