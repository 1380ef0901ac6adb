"""Are interfaces those that lead out of the host, counted once?"""

from __future__ import annotations

from pathlib import Path

import psutil
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import of, values, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host.network import NetworkSensor, parse_interfaces

HEAD = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
"""
LO = "    lo: 7 7 0 0 0 0 0 0 7 7 0 0 0 0 0 0\n"
ETH0 = "  eth0:1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0\n"
BOND0 = " bond0:1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0\n"
VETH = "veth1a: 5 5 0 0 0 0 0 0 5 5 0 0 0 0 0 0\n"


def read(root, level="basic"):
    sensor = NetworkSensor(level, root, root / "sys")
    found = sensor.read()
    sensor.close()
    return found


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
    sensor = NetworkSensor("basic", write_files(tmp_path, {"net/dev": HEAD + ETH0}), tmp_path)
    sensor.read()
    write_files(tmp_path, {"net/dev": HEAD + BOND0})

    assert {key[0] for key in of(names.NETWORK_IO, sensor.read())} == {"bond0"}
    sensor.close()


def test_without_the_file_everything_is_absent(tmp_path):
    """No zeros stand in for what cannot be read."""
    assert read(tmp_path, "detailed") == []


def test_counts_agree_with_psutil():
    """On this machine every count of bytes lies between two readings of psutil."""
    before = psutil.net_io_counters(pernic=True, nowrap=False)
    sensor = NetworkSensor("detailed", Path("/proc"), Path("/sys"))
    found = of(names.NETWORK_IO, sensor.read())
    sensor.close()
    after = psutil.net_io_counters(pernic=True, nowrap=False)

    for (name, direction), value in found.items():
        field = {"receive": "bytes_recv", "transmit": "bytes_sent"}[direction]
        assert getattr(before[name], field) <= value <= getattr(after[name], field)


@given(st.binary(max_size=300) | st.text(":0123456789 \n", max_size=300).map(str.encode))
def test_any_text_gives_whole_lines_or_none(text):
    """Parsing never raises, and no count is below zero."""
    for received, transmitted in parse_interfaces(text).values():
        assert min(*received, *transmitted) >= 0
