"""A real GPU gives the sensor the same values as ``nvidia-smi``."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from nvml.scripted import by_key

from otel_mlperf.sensors.gpus.nvidia.nvidia_gpus import NvmlSensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no nvidia-smi here"),
]

MIB = 1 << 20

STEADY = {
    "memory.total": (("hw.gpu.memory.limit",), MIB),
    "memory.reserved": (("ml.accelerator.memory.reserved",), MIB),
    "enforced.power.limit": (("ml.accelerator.power.limit",), 1),
    "clocks.max.sm": (("ml.accelerator.clock.limit", "sm"), 1e6),
    "clocks.max.mem": (("ml.accelerator.clock.limit", "memory"), 1e6),
    "pcie.link.gen.max": (("ml.accelerator.pcie.generation.limit",), 1),
    "pcie.link.width.max": (("ml.accelerator.pcie.width.limit",), 1),
    "ecc.errors.corrected.volatile.total": (("hw.errors", "corrected"), 1),
    "ecc.errors.uncorrected.volatile.total": (("hw.errors", "uncorrected"), 1),
}
"""Our key without the device, and how many of our units one of theirs is."""

MOVING = {
    "utilization.gpu": (("hw.gpu.utilization", "general"), 0.01, 0.5),
    "memory.used": (("hw.gpu.memory.usage",), MIB, 64 * MIB),
    "temperature.gpu": (("hw.temperature", "gpu"), 1, 5),
    "temperature.memory": (("hw.temperature", "memory"), 1, 5),
    "power.draw": (("hw.power",), 1, 100),
    "clocks.sm": (("ml.accelerator.clock.frequency", "sm"), 1e6, 1e9),
    "clocks.mem": (("ml.accelerator.clock.frequency", "memory"), 1e6, 2e9),
}
"""The same, and how far the two may be apart, since one is read after the other."""


def say(*fields):
    """What nvidia-smi says of each GPU: fields by UUID."""
    query = f"--query-gpu=uuid,{','.join(fields)}"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [line.split(", ") for line in lines]
    return {row[0]: dict(zip(fields, row[1:], strict=True)) for row in rows}


def is_number(text):
    return text.replace(".", "", 1).isdigit()


@pytest.fixture
def found():
    sensor = NvmlSensor(level="comprehensive")
    sensor.detect()
    yield by_key(sensor.read())
    sensor.close()


def test_what_does_not_move_is_equal(found):
    """Limits, sizes and error counts are those of nvidia-smi; what it does not know is absent."""
    gpus = say(*STEADY)

    assert gpus
    for uuid, fields in gpus.items():
        for field, (key, unit) in STEADY.items():
            value = found.get((key[0], uuid, *key[1:]))
            expected = float(fields[field]) * unit if is_number(fields[field]) else None
            assert value == (expected if expected is None else pytest.approx(expected, abs=unit)), (
                field
            )


def test_what_moves_is_near(found):
    """Load, temperature, power and clocks are what nvidia-smi says a moment later, about."""
    gpus = say(*MOVING)

    for uuid, fields in gpus.items():
        for field, (key, unit, apart) in MOVING.items():
            if is_number(fields[field]):
                value = found[key[0], uuid, *key[1:]]
                assert value == pytest.approx(float(fields[field]) * unit, abs=apart), field


def test_energy_only_grows():
    """Two passes, some work or none between them: the second has used no less."""
    sensor = NvmlSensor()
    sensor.detect()
    first, second = by_key(sensor.read()), by_key(sensor.read())
    sensor.close()

    energy = [key for key in first if key[0] == "hw.energy"]
    assert all(second[key] >= first[key] for key in energy)
