"""Interfaces are those that lead out of the host, counted once."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from kernel_files import of, values, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host.devices import INTERFACES, DeviceSensor

HEAD = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
"""
LO = "    lo: 7 7 0 0 0 0 0 0 7 7 0 0 0 0 0 0\n"
ETH0 = "  eth0:1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0\n"
BOND0 = " bond0:1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0\n"
VETH = "veth1a: 5 5 0 0 0 0 0 0 5 5 0 0 0 0 0 0\n"


@pytest.fixture(autouse=True)
def procfs(request, monkeypatch):
    """Psutil reads the test's own ``/proc`` where it has one."""
    if "tmp_path" in request.fixturenames:
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(request.getfixturevalue("tmp_path")))


def read(root, level="basic"):
    return DeviceSensor(INTERFACES, level, root / "sys").read()


def test_only_real_devices_are_counted_where_there_are_any(tmp_path):
    """A bond carries what its devices carry: with it bytes would count twice."""
    write_files(tmp_path, {"net/dev": HEAD + LO + ETH0 + BOND0 + VETH})
    write_files(tmp_path, {"sys/class/net/eth0/device/vendor": "x"})

    assert values(read(tmp_path)) == {
        (names.NETWORK_IO.name, "eth0", "receive"): 1000,
        (names.NETWORK_IO.name, "eth0", "transmit"): 2000,
    }


def test_a_container_has_its_interface(tmp_path):
    """No device is real there; loopback and the ends of other containers' pairs are left out."""
    found = read(write_files(tmp_path, {"net/dev": HEAD + LO + ETH0 + VETH}), "detailed")

    assert values(found) == {
        (names.NETWORK_IO.name, "eth0", "receive"): 1000,
        (names.NETWORK_IO.name, "eth0", "transmit"): 2000,
        (names.NETWORK_PACKETS.name, "eth0", "receive"): 10,
        (names.NETWORK_PACKETS.name, "eth0", "transmit"): 20,
        (names.NETWORK_ERRORS.name, "eth0", "receive"): 1,
        (names.NETWORK_ERRORS.name, "eth0", "transmit"): 3,
        (names.NETWORK_DROPPED.name, "eth0", "receive"): 2,
        (names.NETWORK_DROPPED.name, "eth0", "transmit"): 4,
    }


def test_an_interface_that_comes_later_is_found(tmp_path):
    """And one that goes is absent."""
    sensor = DeviceSensor(INTERFACES, "basic", write_files(tmp_path, {"net/dev": HEAD + ETH0}))
    sensor.read()
    write_files(tmp_path, {"net/dev": HEAD + BOND0})

    assert {key[0] for key in of(names.NETWORK_IO, sensor.read())} == {"bond0"}


def test_without_the_file_everything_is_absent(tmp_path):
    """No zeros stand in for what cannot be read."""
    assert read(tmp_path, "detailed") == []


def test_counts_are_those_of_the_kernel():
    """On this machine every count lies between two readings of ``/proc/net/dev``."""
    before = kernel_counts()
    found = values(read(Path("/"), "detailed"))
    after = kernel_counts()

    assert len(found) % 8 == 0  # a machine may have no interface that leads out
    for key, value in found.items():
        assert before[key] <= value <= after[key]


def kernel_counts():
    found = {}
    metrics = [names.NETWORK_IO, names.NETWORK_PACKETS, names.NETWORK_ERRORS, names.NETWORK_DROPPED]
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, words = line.partition(":")
        counts = list(map(int, words.split()))
        for direction, first in (("receive", 0), ("transmit", 8)):
            for metric, count in zip(metrics, counts[first:], strict=False):
                found[metric.name, name.strip(), direction] = count
    return found


@pytest.mark.fault("F74")
@pytest.mark.parametrize("text", ["", HEAD + "eth0: 1 2 3\n", HEAD + "eth0: a b\n"])
def test_text_that_is_no_table_gives_nothing(tmp_path, text):
    """Psutil raises; the readings are absent."""
    assert read(write_files(tmp_path, {"net/dev": text}), "detailed") == []
