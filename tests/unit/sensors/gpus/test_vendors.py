"""The GPUs of a vendor from another package are read, whatever another vendor does."""

from __future__ import annotations

import importlib
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import recipes
from servers.running import wait_until

from otel_mlperf import names
from otel_mlperf.sensors.gpus.vendors import Gpus, find_vendors
from otel_mlperf.sensors.sensor_kind import Surroundings

if TYPE_CHECKING:
    from otel_mlperf.sensors.measurement import Measurement

ACME = recipes.recipes(recipes.PAGE.read_text())["A GPU vendor"]
HANGING = """
import threading

from otel_mlperf.sensors.gpus.gpu import Device
from otel_mlperf.sensors.sensor_kind import SensorKind

ANSWERS = threading.Event()


class HangingGpus:
    devices = (Device("HANGING-0", 0, "Hanging"),)

    def __init__(self, surroundings):
        pass

    def detect(self):
        return ANSWERS.wait()

    def read(self):
        return []

    def close(self):
        pass


KIND = SensorKind("hanging", HangingGpus)
"""
ENTRY_POINTS = {"otel_mlperf.gpu_vendors": {"hanging": "hanging_gpus:KIND"}}


@pytest.fixture
def _installed(tmp_path, monkeypatch):
    """The vendor of the recipe, and one whose driver does not answer."""
    recipes.install(ACME, tmp_path, "acme")
    hanging = recipes.Recipe({"hanging_gpus.py": HANGING}, ENTRY_POINTS, [])
    recipes.install(hanging, tmp_path, "hanging")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    for module in ("acme_gpu", "hanging_gpus"):
        sys.modules.pop(module, None)


@pytest.mark.fault("F73")
@pytest.mark.usefixtures("_installed")
def test_vendor_that_hangs_costs_no_other_vendor_a_pass() -> None:
    """It is late and absent meanwhile, in one thread however often it is asked, and then there."""
    vendors = find_vendors()
    gpus = Gpus(
        Surroundings(), {name: vendors[name] for name in ("acme", "hanging")}, deadline_s=0.2
    )

    def read() -> set[str]:
        return {measurement.device for measurement in gpus.read() if measurement.device}

    def in_time() -> dict[str, Measurement]:
        """What is said in a pass in which the recipe's vendor was not late, busy as we may be."""
        said = {measurement.metric: measurement for measurement in gpus.read()}
        return said if names.GPU_UTILIZATION.name in said else {}

    wait_until(lambda: read() == {"ACME-0001"}, what="the GPU of the recipe")
    late = gpus.late
    for _ in range(3):
        said = wait_until(in_time, what="an answer of the recipe's within the deadline")
        assert said[names.GPU_UTILIZATION.name].value == 0.5
        assert said[names.SAMPLER_LATE.name].labels == {names.SAMPLER: "gpu"}
        assert [device.uuid for device in gpus.devices()] == ["ACME-0001"]
    assert gpus.late >= late + 3
    assert [one.name for one in threading.enumerate()].count("otel-mlperf gpu hanging") == 1
    assert gpus.seen() is None

    sys.modules["hanging_gpus"].ANSWERS.set()
    wait_until(lambda: gpus.read() and len(gpus.devices()) == 2, what="the other vendor's")
    assert [device.vendor for device in gpus.seen()] == ["acme", "hanging"]
    gpus.close()
