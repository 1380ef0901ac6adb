"""A container reports its own limits, and how often it was throttled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import of, values, write_files
from open_files import open_files

from otel_mlperf import names
from otel_mlperf.sensors.cgroup import CgroupSensor
from otel_mlperf.sensors.cgroup_files import (
    parse_cpu_list,
    parse_limit,
    parse_quota,
    parse_throttling,
)

PID = 7
HOST = {
    "proc/meminfo": "MemTotal: 64000 kB\n",
    "proc/7/status": "Name:\tpython\nCpus_allowed_list:\t0-7\n",
}
V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = """\
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
34 31 0:31 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct
"""
UNLIMITED_V1 = "9223372036854771712\n"


def read(root, level="detailed"):
    sensor = CgroupSensor(level, root / "proc", root / "sys")
    sensor.follow([PID])
    found = sensor.read()
    sensor.close()
    assert {measurement.pid for measurement in found} <= {PID}
    return found


def below(folder, files):
    return {f"sys/fs/cgroup/{folder}{name}": text for name, text in files.items()}


@pytest.fixture
def pod(tmp_path):
    """Version 2: a job without limits in a pod that has them, in a slice that has wider ones."""
    files = HOST | {"proc/7/cgroup": "0::/slice/pod/job\n", "proc/7/mountinfo": V2}
    files |= below("slice/", {"memory.max": "50000000\n", "cpu.max": "600000 100000\n"})
    files |= below(
        "slice/pod/",
        {
            "memory.max": "32000000\n",
            "memory.current": "30000000\n",
            "memory.stat": "anon 1\nfile 2\ninactive_file 4000000\n",
            "memory.peak": "31000000\n",
            "memory.events": "low 0\nhigh 0\nmax 5\noom 3\noom_kill 2\n",
            "cpu.max": "250000 100000\n",
            "cpu.stat": "usage_usec 5000000\nnr_periods 90\nnr_throttled 30\n"
            "throttled_usec 1500000\n",
        },
    )
    job = {"memory.max": "max\n", "memory.current": "20000000\n", "cpu.max": "max 100000\n"}
    return write_files(tmp_path, files | below("slice/pod/job/", job))


@pytest.mark.fault("F74")
def test_limits_are_the_least_of_all_above(pod):
    """The pod's limits hold the job, which has none of its own; use is that of the pod."""
    assert values(read(pod)) == {
        (names.CGROUP_MEMORY_LIMIT.name,): 32_000_000,
        (names.CGROUP_MEMORY.name,): 30_000_000,
        (names.CGROUP_WORKING_SET.name,): 26_000_000,
        (names.CGROUP_MEMORY_PEAK.name,): 31_000_000,
        (names.CGROUP_OOM_KILLS.name,): 2,
        (names.CGROUP_CPU_LIMIT.name,): 2.5,
        (names.CGROUP_CPU_TIME.name,): 5.0,
        (names.CGROUP_PERIODS.name,): 90,
        (names.CGROUP_THROTTLED_PERIODS.name,): 30,
        (names.CGROUP_THROTTLED_TIME.name,): 1.5,
    }


def test_a_limit_that_changes_is_the_new_one(pod):
    """Limits are read each time."""
    sensor = CgroupSensor("basic", pod / "proc", pod / "sys")
    sensor.follow([PID])
    sensor.read()
    write_files(pod, below("slice/pod/", {"memory.max": "max\n", "cpu.max": "max 100000\n"}))
    found = sensor.read()
    sensor.close()

    assert of(names.CGROUP_MEMORY_LIMIT, found) == {(): 50_000_000}
    assert of(names.CGROUP_CPU_LIMIT, found) == {(): 6.0}


@pytest.mark.fault("F74")
def test_version_1_has_the_same_readings(tmp_path):
    """Each controller has its own tree, its own file names and its own units there."""
    cgroup = "4:memory:/slurm/job\n3:cpuacct:/slurm/job\n2:cpu:/slurm/job\n"
    files = HOST | {"proc/7/cgroup": cgroup, "proc/7/mountinfo": V1}
    files |= below("memory/", {"memory.limit_in_bytes": UNLIMITED_V1})
    files |= below(
        "memory/slurm/",
        {
            "memory.limit_in_bytes": "16000000\n",
            "memory.usage_in_bytes": "9000000\n",
            "memory.max_usage_in_bytes": "16000000\n",
            "memory.stat": "inactive_file 1\ntotal_inactive_file 3000000\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        },
    )
    files |= below("memory/slurm/job/", {"memory.limit_in_bytes": UNLIMITED_V1})
    files |= below("cpu/slurm/", {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"})
    files |= below(
        "cpu/slurm/job/",
        {
            "cpu.cfs_quota_us": "150000\n",
            "cpu.cfs_period_us": "100000\n",
            "cpu.stat": "nr_periods 8\nnr_throttled 2\nthrottled_time 500000000\n",
        },
    )
    files |= below("cpuacct/slurm/job/", {"cpuacct.usage": "7000000000\n"})

    assert values(read(write_files(tmp_path, files))) == {
        (names.CGROUP_MEMORY_LIMIT.name,): 16_000_000,
        (names.CGROUP_MEMORY.name,): 9_000_000,
        (names.CGROUP_WORKING_SET.name,): 6_000_000,
        (names.CGROUP_MEMORY_PEAK.name,): 16_000_000,
        (names.CGROUP_OOM_KILLS.name,): 4,
        (names.CGROUP_CPU_LIMIT.name,): 1.5,
        (names.CGROUP_CPU_TIME.name,): 7.0,
        (names.CGROUP_PERIODS.name,): 8,
        (names.CGROUP_THROTTLED_PERIODS.name,): 2,
        (names.CGROUP_THROTTLED_TIME.name,): 0.5,
    }


@pytest.mark.fault("F74")
def test_unlimited_groups_have_the_limits_of_the_machine(tmp_path):
    """The number that version 1 writes for no limit is none, and the CPUs are those allowed."""
    files = HOST | {"proc/7/cgroup": "4:memory:/\n", "proc/7/mountinfo": V1}
    files |= below("memory/", {"memory.limit_in_bytes": UNLIMITED_V1})

    assert values(read(write_files(tmp_path, files))) == {
        (names.CGROUP_MEMORY_LIMIT.name,): 64_000 * 1024,
        (names.CGROUP_CPU_LIMIT.name,): 8,
    }


def test_a_quota_above_the_allowed_cpus_allows_no_more(pod):
    """What binds is the narrower of affinity and quota."""
    write_files(pod, {"proc/7/status": "Cpus_allowed_list:\t3\n"})

    assert of(names.CGROUP_CPU_LIMIT, read(pod)) == {(): 1}


def test_level_basic_leaves_the_peak_out(pod):
    """It is for those who ask for more; that processes were killed everybody must hear."""
    peak = names.CGROUP_MEMORY_PEAK.name
    detailed, basic = values(read(pod)), values(read(pod, "basic"))

    assert basic == {key: value for key, value in detailed.items() if key[0] != peak}
    assert (names.CGROUP_OOM_KILLS.name,) in basic


@pytest.mark.fault("F74")
def test_a_process_that_is_gone_says_nothing(tmp_path):
    """Neither limits nor use."""
    assert read(write_files(tmp_path, {"proc/meminfo": HOST["proc/meminfo"]})) == []


def test_processes_of_one_group_each_say_it(pod):
    """So that the readings of every rank have its limits beside them."""
    write_files(
        pod,
        {
            f"proc/8/{name}": (pod / f"proc/7/{name}").read_text()
            for name in ("cgroup", "mountinfo", "status")
        },
    )
    sensor = CgroupSensor("basic", pod / "proc", pod / "sys")
    sensor.follow([PID, 8])
    found = sensor.read()
    sensor.follow([8])
    later = sensor.read()
    sensor.close()

    ours, theirs = ([m for m in found if m.pid == pid] for pid in (PID, 8))
    assert [m._replace(pid=8) for m in ours] == theirs == later


def test_closing_gives_every_descriptor_back(pod):
    """Groups that processes have left are closed at the next reading."""
    before = open_files()
    sensor = CgroupSensor("detailed", pod / "proc", pod / "sys")
    sensor.follow([PID])
    sensor.read()
    assert open_files() - before
    sensor.follow([])
    sensor.read()

    assert not open_files() - before
    sensor.close()


def test_this_process_has_limits_on_this_machine():
    """The machine's memory at most, and the CPUs that this process may run on at most."""
    sensor = CgroupSensor("detailed", Path("/proc"), Path("/sys"))
    sensor.follow([os.getpid()])
    found = sensor.read()
    sensor.close()

    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < of(names.CGROUP_MEMORY_LIMIT, found)[()] <= host
    assert 0 < of(names.CGROUP_CPU_LIMIT, found)[()] <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "count"),
    [(b"0\n", 1), (b"0-3,8", 5), (b"0-127\n", 128), (b"", 0), (b"3-1", 0), (b"0-9999999", 0)],
)
def test_lists_of_cpus_are_counted(text, count):
    """Ranges hold both of their ends."""
    assert len(parse_cpu_list(text)) == count


@pytest.mark.fault("F74")
@given(st.binary(max_size=60) | st.text("0123456789-, \nmax", max_size=60).map(str.encode))
def test_any_text_gives_a_limit_or_none(text):
    """Parsing never raises, and no limit is zero or less, save a limit of no memory."""
    quota, cpus, limit = parse_quota(text), parse_cpu_list(text), parse_limit(text)

    assert quota is None or quota > 0
    assert cpus == [] or min(cpus) >= 0
    assert limit is None or 0 <= limit < 1 << 62
    assert parse_throttling(text).limit_cpus is None
