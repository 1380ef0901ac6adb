"""Is the temperature that of the CPU, where there is a sensor?"""

from __future__ import annotations

from kernel_files import of, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host.temperature import find_thermometers

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
    return [found for thermometer in find_thermometers(sys) for found in thermometer.read()]


def test_the_package_is_read_and_its_cores_are_not(tmp_path):
    """One series for each package, however many cores; disks have sensors too, left out here."""
    found = read(write_files(tmp_path, CORETEMP | ZONES))

    assert of(names.HW_TEMPERATURE, found) == {("hwmon3/coretemp", "Package id 0"): 61.0}


def test_thermal_zones_serve_where_no_driver_does(tmp_path):
    """Degrees below zero are degrees."""
    found = read(write_files(tmp_path, ZONES))

    assert of(names.HW_TEMPERATURE, found) == {("thermal_zone1", "x86_pkg_temp"): -1.5}


def test_a_sensor_that_does_not_answer_is_absent(tmp_path):
    """So is one that answers nonsense, and every sensor of a machine without any."""
    files = CORETEMP | {"class/hwmon/hwmon3/temp1_input": "N/A\n"}

    assert read(write_files(tmp_path, files)) == []
    assert read(tmp_path / "nowhere") == []
