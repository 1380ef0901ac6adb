"""Metrics of GPUs and other hardware.

Values that a device does not provide are absent, never zero.
"""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import (
    ACCELERATOR_LINK,
    CLOCK_DOMAIN,
    ERROR_TYPE,
    HW_GPU_TASK,
    HW_ID,
    HW_LIMIT_TYPE,
    HW_MODEL,
    HW_NAME,
    HW_PARENT,
    HW_SENSOR_LOCATION,
    HW_TYPE,
    NETWORK_DIRECTION,
    REPAIR_TYPE,
    THROTTLE_REASON,
)
from otel_mlperf.names.metric import Metric

HW_TEMPERATURE: Final = Metric(
    "hw.temperature",
    "Cel",
    "gauge",
    "Temperature of a GPU, or of a CPU where the machine has a sensor.",
    (HW_ID, HW_NAME, HW_SENSOR_LOCATION),
)
GPU_UTILIZATION: Final = Metric(
    "hw.gpu.utilization",
    "1",
    "gauge",
    "Share of the time in which a kernel, the encoder or the decoder ran.",
    (HW_ID, HW_NAME, HW_GPU_TASK),
)
GPU_MEMORY_USAGE: Final = Metric(
    "hw.gpu.memory.usage",
    "By",
    "updowncounter",
    "Memory in use, without memory reserved by the driver.",
    (HW_ID, HW_NAME, HW_PARENT),
)
GPU_MEMORY_LIMIT: Final = Metric(
    "hw.gpu.memory.limit",
    "By",
    "updowncounter",
    "Memory of the device.",
    (HW_ID, HW_NAME, HW_MODEL, HW_PARENT),
)
GPU_MEMORY_UTILIZATION: Final = Metric(
    "hw.gpu.memory.utilization",
    "1",
    "gauge",
    "Memory in use / memory of the device.",
    (HW_ID, HW_NAME, HW_PARENT),
)
GPU_IO: Final = Metric(
    "hw.gpu.io",
    "By",
    "counter",
    "Bytes sent and received by the device.",
    (HW_ID, HW_NAME, NETWORK_DIRECTION, ACCELERATOR_LINK),
)
HW_ERRORS: Final = Metric(
    "hw.errors",
    "{error}",
    "counter",
    "Errors since the driver was loaded: ECC, PCIe replays, NVLink; XID errors since the agent "
    "started.",
    (HW_ID, HW_NAME, HW_TYPE, ERROR_TYPE),
)
HW_POWER: Final = Metric("hw.power", "W", "gauge", "Power drawn.", (HW_ID, HW_NAME, HW_TYPE))
HW_ENERGY: Final = Metric(
    "hw.energy",
    "J",
    "counter",
    "Energy consumed since the driver was loaded.",
    (HW_ID, HW_NAME, HW_TYPE),
)
HW_TEMPERATURE_LIMIT: Final = Metric(
    "hw.temperature.limit",
    "Cel",
    "gauge",
    "Temperature limits: throttling of clocks, shutdown (critical), maximum for continuous "
    "operation (max).",
    (HW_ID, HW_NAME, HW_SENSOR_LOCATION, HW_LIMIT_TYPE),
)
TEMPERATURE_MARGIN: Final = Metric(
    "ml.accelerator.temperature.margin",
    "Cel",
    "gauge",
    "Degrees left until the clocks are throttled.",
    (HW_ID, HW_NAME),
)
MEMORY_RESERVED: Final = Metric(
    "ml.accelerator.memory.reserved",
    "By",
    "updowncounter",
    "Memory reserved by the driver and the firmware.",
    (HW_ID, HW_NAME),
)
MEMORY_BUSY: Final = Metric(
    "ml.accelerator.memory.busy",
    "1",
    "gauge",
    "Share of the time in which the memory was read or written.",
    (HW_ID, HW_NAME),
)
POWER_LIMIT: Final = Metric(
    "ml.accelerator.power.limit",
    "W",
    "gauge",
    "Power limit set in the driver.",
    (HW_ID, HW_NAME),
)
CLOCK: Final = Metric(
    "ml.accelerator.clock.frequency",
    "Hz",
    "gauge",
    "Current clock frequency.",
    (HW_ID, HW_NAME, CLOCK_DOMAIN),
)
CLOCK_LIMIT: Final = Metric(
    "ml.accelerator.clock.limit",
    "Hz",
    "gauge",
    "Maximum clock frequency of the device.",
    (HW_ID, HW_NAME, CLOCK_DOMAIN),
)
THROTTLE: Final = Metric(
    "ml.accelerator.throttle",
    "",
    "gauge",
    "1 while the clocks are held below their maximum for this reason, else 0.",
    (HW_ID, HW_NAME, THROTTLE_REASON),
)
THROTTLE_TIME: Final = Metric(
    "ml.accelerator.throttle.time",
    "s",
    "counter",
    "Time in which a policy kept the clocks below the requested frequency.",
    (HW_ID, HW_NAME, THROTTLE_REASON),
)
PERFORMANCE_STATE: Final = Metric(
    "ml.accelerator.performance_state",
    "",
    "gauge",
    "P-state: 0 is the fastest, 15 the slowest.",
    (HW_ID, HW_NAME),
)
PCIE_GENERATION: Final = Metric(
    "ml.accelerator.pcie.generation",
    "",
    "gauge",
    "Current generation of the PCIe link; it drops while the device is idle.",
    (HW_ID, HW_NAME),
)
PCIE_GENERATION_LIMIT: Final = Metric(
    "ml.accelerator.pcie.generation.limit",
    "",
    "gauge",
    "Highest PCIe generation that both device and slot support.",
    (HW_ID, HW_NAME),
)
PCIE_WIDTH: Final = Metric(
    "ml.accelerator.pcie.width",
    "{lane}",
    "gauge",
    "Lanes in use by the PCIe link.",
    (HW_ID, HW_NAME),
)
PCIE_WIDTH_LIMIT: Final = Metric(
    "ml.accelerator.pcie.width.limit",
    "{lane}",
    "gauge",
    "Maximum number of PCIe lanes that both device and slot support.",
    (HW_ID, HW_NAME),
)
NVLINK_ACTIVE: Final = Metric(
    "ml.accelerator.nvlink.active", "{link}", "gauge", "Active NVLinks.", (HW_ID, HW_NAME)
)
XID: Final = Metric(
    "ml.accelerator.xid",
    "",
    "gauge",
    "Number of the last XID error since the agent started.",
    (HW_ID, HW_NAME),
)
ROWS_REMAPPED: Final = Metric(
    "ml.accelerator.memory.remapped",
    "{row}",
    "gauge",
    "Rows of memory replaced by spare ones.",
    (HW_ID, HW_NAME, ERROR_TYPE),
)
PAGES_RETIRED: Final = Metric(
    "ml.accelerator.memory.retired",
    "{page}",
    "gauge",
    "Pages of memory taken out of use.",
    (HW_ID, HW_NAME, ERROR_TYPE),
)
REPAIR_PENDING: Final = Metric(
    "ml.accelerator.memory.repair.pending",
    "",
    "gauge",
    "1 while the replacement of rows or pages waits for a reset of the device, else 0.",
    (HW_ID, HW_NAME, REPAIR_TYPE),
)
REPAIR_FAILED: Final = Metric(
    "ml.accelerator.memory.repair.failed",
    "",
    "gauge",
    "1 if the replacement of a row failed and the device must be exchanged, else 0.",
    (HW_ID, HW_NAME),
)
DEVICE_PROCESS_MEMORY: Final = Metric(
    "ml.accelerator.process.memory.usage",
    "By",
    "updowncounter",
    "Device memory in use by the process.",
    (HW_ID, HW_NAME, HW_PARENT),
)
DEVICE_PROCESS_UTILIZATION: Final = Metric(
    "ml.accelerator.process.utilization",
    "1",
    "gauge",
    "Share of time in which work of the process ran on the device.",
    (HW_ID, HW_NAME, HW_GPU_TASK),
)
DEVICE_LOST: Final = Metric(
    "ml.accelerator.lost",
    "{loss}",
    "counter",
    "Losses of the device: off the bus, reset required, or no response before the timeout.",
    (HW_ID, HW_NAME),
)
