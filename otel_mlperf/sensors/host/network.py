"""What goes over the network interfaces of the host?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import KeptFile, numbers
from otel_mlperf.sensors.measurement import Level, Measurement, includes

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_FIELDS: Final = 16
_VIRTUAL: Final = (
    "lo", "veth", "docker", "br-", "virbr", "cni", "cali", "flannel", "ifb", "dummy", "tunl",
    "sit", "ip6tnl", "gre", "erspan", "tap", "vnet",
)  # fmt: skip
"""How interfaces begin that carry what another one carries too, or nothing."""


class Traffic(NamedTuple):
    """One direction of one interface."""

    size_bytes: int
    packets: int
    errors: int
    dropped: int


def parse_interfaces(text: bytes) -> dict[str, tuple[Traffic, Traffic]]:
    """Received and transmitted by interface, of ``/proc/net/dev``."""
    traffic = {}
    for line in text.split(b"\n"):
        name, colon, rest = line.partition(b":")
        counts = numbers(rest.split()) if colon else []
        if len(counts) >= _FIELDS:
            interface = name.strip().decode("utf-8", "replace")
            traffic[interface] = (Traffic(*counts[0:4]), Traffic(*counts[8:12]))
    return traffic


class NetworkSensor:
    """The interfaces that lead out of the host, or out of the container."""

    def __init__(self, level: Level, proc: Path, sys: Path) -> None:
        self._level, self._sys = level, sys
        self._dev = KeptFile(proc / "net" / "dev", may_lack=False)
        self._seen: Collection[str] = ()
        self._shown: Collection[str] = ()

    def read(self) -> list[Measurement]:
        """Bytes; from level ``detailed`` on also packets, what was dropped, and errors."""
        interfaces = parse_interfaces(self._dev.read())
        # Only then: to look whether one is real costs a call of the kernel for each.
        if interfaces.keys() != self._seen:
            self._seen, self._shown = set(interfaces), self._leading_out(interfaces)
        measured: list[Measurement] = []
        for name in self._shown:
            received, transmitted = interfaces[name]
            measured += self._measure(name, "receive", received)
            measured += self._measure(name, "transmit", transmitted)
        return measured

    def _leading_out(self, interfaces: Collection[str]) -> list[str]:
        """Real devices; in a container, which has none, whatever is not virtual by its name."""
        folder = self._sys / "class" / "net"
        real = [name for name in interfaces if os.path.exists(folder / name / "device")]
        return real or [name for name in interfaces if not name.startswith(_VIRTUAL)]

    def _measure(self, name: str, direction: str, traffic: Traffic) -> list[Measurement]:
        labels = {names.NETWORK_INTERFACE: name, names.NETWORK_DIRECTION: direction}
        measured = [Measurement(names.NETWORK_IO.name, labels, traffic.size_bytes)]
        if includes(self._level, "detailed"):
            measured += [
                Measurement(names.NETWORK_PACKETS.name, labels, traffic.packets),
                Measurement(names.NETWORK_DROPPED.name, labels, traffic.dropped),
                Measurement(names.NETWORK_ERRORS.name, labels, traffic.errors),
            ]
        return measured

    def close(self) -> None:
        """Closes its file."""
        self._dev.close()
