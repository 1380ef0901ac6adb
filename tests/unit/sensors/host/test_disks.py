"""Traffic of real disks is counted once, and so is space on the disk of the run folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from kernel_files import of, values, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host import devices
from otel_mlperf.sensors.host.devices import DISKS, DeviceSensor
from otel_mlperf.sensors.host.filesystem import FilesystemSensor

DISKSTATS = """\
   7       0 loop0 11 0 22 0 0 0 0 0 0 33 44
 259       0 nvme0n1 100 1 2000 3 40 5 600 7 0 8500 9 1 2 3 4 5 6
 259       1 nvme0n1p1 90 1 1900 3 40 5 600 7 0 8000 9 1 2 3 4 5 6
 253       0 dm-0 190 1 1900 3 40 5 600 7 0 8000 9
 104       0 cciss/c0d0 1 0 2 0 3 0 4 0 0 5 6
"""
REAL = {"sys/block/nvme0n1/device/model": "x", "sys/block/cciss!c0d0/device/model": "x"}
REAL |= {"sys/block/loop0/size": "0", "sys/block/dm-0/size": "1"}


def read(root, level="basic"):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psutil, "PROCFS_PATH", str(root))
        return DeviceSensor(DISKS, level, root / "sys").read()


def test_only_real_disks_are_counted(tmp_path):
    """Partitions, loops and mapped devices lie on disks: with them bytes would count twice."""
    found = read(write_files(tmp_path, {"diskstats": DISKSTATS, **REAL}))

    assert values(found) == {
        (names.DISK_IO.name, "nvme0n1", "read"): 2000 * 512,
        (names.DISK_IO.name, "nvme0n1", "write"): 600 * 512,
        (names.DISK_IO_TIME.name, "nvme0n1"): 8.5,
        (names.DISK_IO.name, "cciss/c0d0", "read"): 2 * 512,
        (names.DISK_IO.name, "cciss/c0d0", "write"): 4 * 512,
        (names.DISK_IO_TIME.name, "cciss/c0d0"): 0.005,
    }


def test_operations_come_with_level_detailed(tmp_path):
    """Reads and writes that are complete."""
    found = read(write_files(tmp_path, {"diskstats": DISKSTATS, **REAL}), "detailed")

    assert of(names.DISK_OPERATIONS, found)["nvme0n1", "read"] == 100
    assert of(names.DISK_OPERATIONS, found)["nvme0n1", "write"] == 40


def test_a_machine_without_real_disks_has_none(tmp_path):
    """Absent, not zero."""
    assert read(write_files(tmp_path, {"diskstats": DISKSTATS}), "detailed") == []


def test_counts_are_those_of_diskstats():
    """On this machine every count lies between two readings of the kernel."""
    before = kernel_counts()
    found = values(DeviceSensor(DISKS, "detailed", Path("/sys")).read())
    after = kernel_counts()

    assert {key[1] for key in found} == {name for name in before if is_real(name)}
    assert all(before[key[1]][key] <= value <= after[key[1]][key] for key, value in found.items())


def is_real(name):
    return Path("/sys/block", name, "device").exists()


def kernel_counts():
    """Of ``/proc/diskstats``: by disk, then by metric, disk and direction."""
    found = {}
    for line in Path("/proc/diskstats").read_text().splitlines():
        _, _, name, *words = line.split()
        reads, _, read, _, writes, _, written, _, _, busy_ms, *_ = map(int, words)
        found[name] = {
            (names.DISK_IO.name, name, "read"): read * 512,
            (names.DISK_IO.name, name, "write"): written * 512,
            (names.DISK_IO_TIME.name, name): busy_ms / 1e3,
            (names.DISK_OPERATIONS.name, name, "read"): reads,
            (names.DISK_OPERATIONS.name, name, "write"): writes,
        }
    return found


class MacCounts(NamedTuple):
    """What psutil returns there, without the time in which a disk was busy."""

    read_bytes: int
    write_bytes: int
    read_count: int
    write_count: int


def test_a_system_without_sysfs_counts_every_disk(tmp_path, monkeypatch):
    """Psutil lists whole disks there; what it lacks is absent."""
    monkeypatch.setattr(devices, "LINUX", False)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: {"disk0": MacCounts(1, 2, 3, 4)})

    assert values(DeviceSensor(DISKS, "detailed", tmp_path).read()) == {
        (names.DISK_IO.name, "disk0", "read"): 1,
        (names.DISK_IO.name, "disk0", "write"): 2,
        (names.DISK_OPERATIONS.name, "disk0", "read"): 3,
        (names.DISK_OPERATIONS.name, "disk0", "write"): 4,
    }


@pytest.mark.fault("F74")
def test_text_that_is_no_diskstats_gives_nothing(tmp_path):
    """Psutil raises; the readings are absent."""
    write_files(tmp_path, {"diskstats": "8 0 sda 1 2 3\n", "sys/block/sda/device/model": "x"})

    assert read(tmp_path, "detailed") == []


def test_space_agrees_with_the_standard_library(tmp_path):
    """States add up to the size, and free is what a user can still write, to 64 MiB."""
    found = FilesystemSensor(tmp_path).read()
    theirs = shutil.disk_usage(tmp_path)

    ((mountpoint,),) = of(names.FILESYSTEM_LIMIT, found)
    states = {key[1]: size for key, size in of(names.FILESYSTEM_USAGE, found).items()}
    assert tmp_path.is_relative_to(mountpoint)
    assert of(names.FILESYSTEM_LIMIT, found)[mountpoint,] == theirs.total == sum(states.values())
    assert states["free"] == pytest.approx(theirs.free, abs=64 << 20)
    share = states["used"] / (states["used"] + states["free"])
    assert of(names.FILESYSTEM_UTILIZATION, found) == {(mountpoint,): share}


def test_a_folder_that_is_gone_is_absent(tmp_path):
    """Nothing is said of a disk that cannot be asked."""
    assert FilesystemSensor(tmp_path / "gone").read() == []
