"""Traffic of the host's network interfaces, from psutil."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Level, Measurement, includes
from otel_mlperf.sensors.psutil_calls import read_psutil

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_VIRTUAL: Final = (
    "lo", "veth", "docker", "br-", "virbr", "cni", "cali", "flannel", "ifb", "dummy", "tunl",
    "sit", "ip6tnl", "gre", "erspan", "tap", "vnet", "utun", "awdl", "llw", "gif", "stf", "bridge",
)  # fmt: skip
"""How interfaces begin that carry what another one carries too, or nothing."""


class NetworkSensor:
    """The interfaces that lead out of the host, or out of the container."""

    def __init__(self, level: Level, sys: Path) -> None:
        self._level, self._sys = level, sys
        self._seen: Collection[str] = ()
        self._shown: Collection[str] = ()

    def read(self) -> list[Measurement]:
        """Return bytes; from level ``detailed`` on also packets, what was dropped, and errors."""
        interfaces = read_psutil("net_io_counters", pernic=True, nowrap=False) or {}
        # Only then: to look whether one is real costs a call of the kernel for each.
        if interfaces.keys() != self._seen:
            self._seen, self._shown = set(interfaces), self._leading_out(interfaces)
        return [
            measurement
            for name in self._shown
            for measurement in self._measure(name, interfaces[name])
        ]

    def _leading_out(self, interfaces: Collection[str]) -> list[str]:
        """Real devices; in a container, which has none, whatever is not virtual by its name."""
        folder = self._sys / "class" / "net"
        real = [name for name in interfaces if os.path.exists(folder / name / "device")]
        return real or [name for name in interfaces if not name.startswith(_VIRTUAL)]

    def _measure(self, name: str, counts: Any) -> list[Measurement]:
        interface = {names.NETWORK_INTERFACE: name}
        received = {**interface, names.NETWORK_DIRECTION: "receive"}
        sent = {**interface, names.NETWORK_DIRECTION: "transmit"}
        measured = [
            Measurement(names.NETWORK_IO.name, received, counts.bytes_recv),
            Measurement(names.NETWORK_IO.name, sent, counts.bytes_sent),
        ]
        if includes(self._level, "detailed"):
            measured += [
                Measurement(names.NETWORK_PACKETS.name, received, counts.packets_recv),
                Measurement(names.NETWORK_PACKETS.name, sent, counts.packets_sent),
                Measurement(names.NETWORK_DROPPED.name, received, counts.dropin),
                Measurement(names.NETWORK_DROPPED.name, sent, counts.dropout),
                Measurement(names.NETWORK_ERRORS.name, received, counts.errin),
                Measurement(names.NETWORK_ERRORS.name, sent, counts.errout),
            ]
        return measured

    def close(self) -> None:
        """Nothing is open."""
