"""Are times, shares and temperatures of CPUs those of the kernel?"""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import of, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host.cpu import (
    CpuSensor,
    find_thermometers,
    parse_cpu_times,
    parse_cpus,
    parse_total,
    shares,
)

STAT = """\
cpu  1000 50 300 6000 200 10 40 5 900 0
cpu0 600 30 200 3000 150 6 20 3 500 0
cpu1 400 20 100 3000 50 4 20 2 400 0
intr 123 4 5
cpu9 9 9 9 9 9 9 9 9 9 9
ctxt 99
"""
LATER = "cpu  1040 50 310 6040 190 15 45 5"
TICK = os.sysconf("SC_CLK_TCK")


def sensor(root, level="basic"):
    return CpuSensor(level, root, root / "sys")


def test_times_are_the_kernel_s_by_mode(tmp_path):
    """Ticks become seconds; hard and soft interrupts are one mode, guests are in user already."""
    found = sensor(write_files(tmp_path, {"stat": STAT})).read()

    ticks = {"user": 1000, "nice": 50, "system": 300, "idle": 6000, "iowait": 200}
    ticks |= {"interrupt": 50, "steal": 5}
    assert of(names.SYSTEM_CPU_TIME, found) == {(k,): v / TICK for k, v in ticks.items()}
    assert of(names.SYSTEM_CPU_COUNT, found) == {(): 2}


@pytest.mark.fault("F74")
def test_the_first_reading_has_no_shares(tmp_path):
    """Shares are of the time between two readings; before the second there are none."""
    found = sensor(write_files(tmp_path, {"stat": STAT})).read()

    assert of(names.SYSTEM_CPU_UTILIZATION, found) == {}


def test_shares_are_those_since_the_reading_before(tmp_path):
    """Each mode's ticks over all that passed; time that ran backwards counts as none."""
    cpu = sensor(write_files(tmp_path, {"stat": STAT}))
    cpu.read()
    write_files(tmp_path, {"stat": LATER})

    found = of(names.SYSTEM_CPU_UTILIZATION, cpu.read())
    assert found[("user",)] == pytest.approx(40 / 100)
    assert found[("system",)] == pytest.approx(10 / 100)
    assert found[("idle",)] == pytest.approx(40 / 100)
    assert found[("interrupt",)] == pytest.approx(10 / 100)
    assert found[("iowait",)] == 0
    assert sum(found.values()) == pytest.approx(1)


def test_comprehensive_gives_each_cpu_instead_of_the_sum(tmp_path):
    """The points add up to the time of the host: none is counted twice."""
    found = sensor(write_files(tmp_path, {"stat": STAT}), "comprehensive").read()

    times = of(names.SYSTEM_CPU_TIME, found)
    assert times["user", "1"] == 400 / TICK
    assert sum(times.values()) * TICK == pytest.approx(1000 + 50 + 300 + 6000 + 200 + 50 + 5)


@pytest.mark.fault("F74")
def test_without_the_file_everything_is_absent(tmp_path):
    """No zeros stand in for what cannot be read."""
    assert sensor(tmp_path, "comprehensive").read() == []


def test_frequency_is_the_mean_of_the_cpus(tmp_path):
    """In hertz, of the drivers' files; where there are none, of cpuinfo."""
    write_files(tmp_path, {"cpuinfo": "cpu MHz\t\t: 1000.0\nflags: x\ncpu MHz\t\t: 2000.500\n"})
    assert of(names.SYSTEM_CPU_FREQUENCY, sensor(tmp_path, "detailed").read()) == {
        (): pytest.approx(1_500_250_000)
    }
    folder = "sys/devices/system/cpu"
    for cpu, kilohertz in (("cpu0", 3_000_000), ("cpu1", 1_000_000)):
        write_files(tmp_path, {f"{folder}/{cpu}/cpufreq/scaling_cur_freq": f"{kilohertz}\n"})

    found = of(names.SYSTEM_CPU_FREQUENCY, sensor(tmp_path, "detailed").read())
    assert found == {(): 2e9}
    assert of(names.SYSTEM_CPU_FREQUENCY, sensor(tmp_path, "basic").read()) == {}


def test_times_agree_with_psutil():
    """On this machine each mode lies between two readings of psutil, to a tick."""
    cpu = CpuSensor("basic", Path("/proc"), Path("/sys"))
    before = psutil.cpu_times()
    found = of(names.SYSTEM_CPU_TIME, cpu.read())
    after = psutil.cpu_times()
    cpu.close()

    for mode in ("user", "nice", "system", "steal"):
        low, high = getattr(before, mode), getattr(after, mode)
        assert low - 1 / TICK <= found[mode,] <= high + 1 / TICK
    interrupts = before.irq + before.softirq, after.irq + after.softirq
    assert interrupts[0] - 1 / TICK <= found["interrupt",] <= interrupts[1] + 1 / TICK
    assert of(names.SYSTEM_CPU_COUNT, cpu.read()) == {(): psutil.cpu_count()}


@given(st.binary(max_size=200))
def test_any_text_gives_times_or_none(text):
    """Parsing never raises; what is given has every mode, none below zero."""
    total, count = parse_total(text)
    assert count >= 0
    for times in (parse_cpu_times(text), total, *parse_cpus(text).values()):
        assert times is None or (len(times) == 7 and min(times.values()) >= 0)


ticks = st.lists(st.integers(0, 2**62), min_size=10, max_size=10)


@given(ticks, ticks)
def test_shares_add_up_to_one_or_there_are_none(before, now):
    """Whatever two readings say, shares are shares."""
    first, second = (parse_cpu_times(" ".join(map(str, n)).encode()) for n in (before, now))
    found = shares(first, second)

    assert not found or sum(found.values()) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in found.values())


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


@pytest.mark.fault("F74")
def test_a_sensor_that_does_not_answer_is_absent(tmp_path):
    """So is one that answers nonsense, and every sensor of a machine without any."""
    files = CORETEMP | {"class/hwmon/hwmon3/temp1_input": "N/A\n"}

    assert read(write_files(tmp_path, files)) == []
    assert read(tmp_path / "nowhere") == []
