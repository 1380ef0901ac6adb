"""Times, shares and load of CPUs are those of the kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import of, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host.host_sensor import CpuSensor, by_mode, shares

STAT = """\
cpu  1000 50 300 6000 200 10 40 5 900 0
cpu0 600 30 200 3000 150 6 20 3 500 0
cpu1 400 20 100 3000 50 4 20 2 400 0
intr 123 4 5
ctxt 99
"""
LATER = "cpu  1040 50 310 6040 190 15 45 5 900 0"
TICK = os.sysconf("SC_CLK_TCK")


@pytest.fixture(autouse=True)
def procfs(request, monkeypatch):
    """Psutil reads the test's own ``/proc`` where it has one."""
    if "tmp_path" in request.fixturenames:
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(request.getfixturevalue("tmp_path")))


def sensor(root, level="basic"):
    return CpuSensor(level, root / "sys")


def test_times_are_the_kernel_s_by_mode(tmp_path):
    """Ticks become seconds; hard and soft interrupts are one mode, guests are in user already."""
    found = sensor(write_files(tmp_path, {"stat": STAT})).read()

    ticks = {"user": 1000, "nice": 50, "system": 300, "idle": 6000, "iowait": 200}
    ticks |= {"interrupt": 50, "steal": 5}
    assert of(names.SYSTEM_CPU_TIME, found) == {(k,): v / TICK for k, v in ticks.items()}


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
    found = {one.metric for one in sensor(tmp_path, "comprehensive").read()}

    assert not found & {names.SYSTEM_CPU_TIME.name, names.SYSTEM_CPU_UTILIZATION.name}


def test_times_are_those_of_proc_stat():
    """On this machine each mode, in sum and by CPU, lies between two readings of the kernel."""
    cpus = CpuSensor("comprehensive", Path("/sys"))
    cpu = CpuSensor("basic", Path("/sys"))
    before = kernel_times()
    found = of(names.SYSTEM_CPU_TIME, cpu.read()) | of(names.SYSTEM_CPU_TIME, cpus.read())
    after = kernel_times()

    assert before.keys() == found.keys()
    for key, seconds in found.items():
        # The kernel may count these two backwards.
        if key[0] not in ("idle", "iowait"):
            assert before[key] <= seconds <= after[key]
        assert seconds == pytest.approx(before[key], abs=60)
    assert of(names.SYSTEM_CPU_COUNT, cpu.read()) == {(): len({key[1:] for key in found}) - 1}


def kernel_times():
    """Seconds of ``/proc/stat`` by mode, and by mode and CPU."""
    found = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *words = line.split()
        if name.startswith("cpu"):
            user, nice, system, idle, iowait, hard, soft, steal, *_ = map(int, words)
            times = {"user": user, "nice": nice, "system": system, "idle": idle}
            times |= {"iowait": iowait, "interrupt": hard + soft, "steal": steal}
            cpu = [name[3:]] if name[3:] else []
            found |= {(mode, *cpu): count / TICK for mode, count in times.items()}
    return found


def test_cpus_have_the_kernels_numbers_where_one_is_switched_off(tmp_path):
    """The second line of a machine without CPU 1 is CPU 2's."""
    online = {"sys/devices/system/cpu/online": "0,2\n"}
    found = sensor(
        write_files(tmp_path, {"stat": STAT.replace("cpu1 ", "cpu2 "), **online}), "comprehensive"
    ).read()

    assert of(names.SYSTEM_CPU_TIME, found)["user", "2"] == 400 / TICK


def test_loads_are_those_of_the_kernel():
    """One minute always, five and fifteen from level detailed on; renewed every 5 s."""
    before = None
    while before != (after := Path("/proc/loadavg").read_text().split()[:3]):
        before = after
        basic, found = (CpuSensor(level, Path("/sys")).read() for level in ("basic", "detailed"))
    metrics = (names.LOAD_1M, names.LOAD_5M, names.LOAD_15M)

    for metric, load in zip(metrics, after, strict=True):
        assert of(metric, found)[()] == pytest.approx(float(load), abs=0.01)
    assert [bool(of(metric, basic)) for metric in metrics] == [True, False, False]


times = st.fixed_dictionaries(
    {mode: st.floats(0, 1e12) for mode in ("user", "nice", "system", "idle", "iowait")}
)


@given(times, times)
def test_shares_add_up_to_one_or_there_are_none(before, now):
    """Whatever two readings say, shares are shares."""
    found = shares(before, now)

    assert not found or sum(found.values()) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in found.values())


class Mac(NamedTuple):
    """What psutil returns there."""

    user: float
    nice: float
    system: float
    idle: float


def test_modes_that_a_system_does_not_count_are_absent():
    """MacOS has four of them."""
    assert by_mode(Mac(1.0, 2.0, 3.0, 4.0)) == {"user": 1, "nice": 2, "system": 3, "idle": 4}
