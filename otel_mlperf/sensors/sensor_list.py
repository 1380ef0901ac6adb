"""List of all sensors except those of GPUs.

To add a sensor to this package, write a module with a ``SensorKind`` and add it to ``SENSORS``.
Other packages provide sensors as entry points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.sensors.host.filesystem import FilesystemSensor
from otel_mlperf.sensors.host.host_sensor import HostSensor
from otel_mlperf.sensors.processes.training_processes import ProcessSensor
from otel_mlperf.sensors.sensor_kind import SensorKind, StartedSensor, find_entry_points

if TYPE_CHECKING:
    from otel_mlperf.sensors.sensor_kind import Surroundings

GROUP: Final = "otel_mlperf.sensors"
"""Group of entry points of other packages, each a ``SensorKind``."""

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
    """Return the sensors of other packages by name; each must be read in a separate thread."""
    return {
        entry.name: StartedSensor(entry.load, surroundings) for entry in find_entry_points(GROUP)
    }
