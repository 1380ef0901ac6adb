"""List of the sensors besides those of GPUs.

A new sensor of this package is a file with a ``SensorKind`` and a line in ``SENSORS``. A sensor of
another package is an entry point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.sensors.host.filesystem import FilesystemSensor
from otel_mlperf.sensors.host.host_sensor import HostSensor
from otel_mlperf.sensors.processes.training_processes import ProcessSensor
from otel_mlperf.sensors.sensor_kind import SensorKind, StartedSensor, find_brought

if TYPE_CHECKING:
    from otel_mlperf.sensors.sensor_kind import Surroundings

GROUP: Final = "otel_mlperf.sensors"
"""Entry points of other packages, each naming a ``SensorKind``."""

SENSORS: Final[tuple[SensorKind[Any], ...]] = (
    SensorKind("host", lambda of: HostSensor(of.level, proc=of.proc, sys=of.sys), at_once=True),
    SensorKind(
        "process",
        lambda of: ProcessSensor(
            of.level, pids=of.pids, loop_threads=of.loop_threads, proc=of.proc, sys=of.sys
        ),
        at_once=True,
    ),
    SensorKind("filesystem", lambda of: FilesystemSensor(of.run_folder)),
)


def find_brought_sensors(surroundings: Surroundings) -> dict[str, StartedSensor[Any]]:
    """Return sensors of other packages by name, each to be read in a thread of its own."""
    return {entry.name: StartedSensor(entry.load, surroundings) for entry in find_brought(GROUP)}
