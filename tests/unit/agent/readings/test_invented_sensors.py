"""GPUs and sensors of other packages are read like ours, and their failures stay their own."""

from __future__ import annotations

import importlib
import sys

import pytest
from by_hand import agent_folder
from servers.running import wait_until

from otel_mlperf import names
from otel_mlperf.agent.derivation.metric_series import Export
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy

INVENTED = """
from otel_mlperf import names
from otel_mlperf.names import Metric
from otel_mlperf.sensors.gpus.gpu import GPU, Device
from otel_mlperf.sensors.measurement import Measurement
from otel_mlperf.sensors.sensor_kind import SensorKind

TILES = Metric("invented.tiles", "{tile}", "gauge", "Tiles that work.", (names.HW_ID,))
SUPPLY = Metric("invented.supply.energy", "J", "counter", "Energy of the supply.")


class InventedGpus:
    def __init__(self, surroundings):
        self.devices = ()

    def detect(self):
        self.devices = (Device("invented-0", 0, "Invented 1"),)
        return True

    def read(self):
        (gpu,) = self.devices
        return [
            gpu.measurement(names.GPU_UTILIZATION, {names.HW_GPU_TASK: "general"}, 0.25),
            gpu.measurement(names.HW_POWER, GPU, 123.0),
            gpu.measurement(TILES, {}, 7.0),
        ]

    def close(self):
        pass


class PowerMeter:
    def __init__(self, surroundings):
        pass

    def read(self):
        return [Measurement(SUPPLY.name, {}, 5000.0)]

    def close(self):
        pass


gpus = SensorKind("invented", InventedGpus, metrics=(TILES,))
meter = SensorKind("power_meter", PowerMeter, metrics=(SUPPLY,))
"""
ENTRY_POINTS = """\
[otel_mlperf.gpu_vendors]
invented = invented_package:gpus
broken = invented_package:nothing

[otel_mlperf.sensors]
power_meter = invented_package:meter
broken_meter = no_such_package:meter
"""


@pytest.fixture
def _invented(tmp_path, monkeypatch):
    """A package that is installed, of which half cannot be loaded."""
    about = tmp_path / "packages" / "invented_package-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: invented-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (about.parent / "invented_package.py").write_text(INVENTED)
    monkeypatch.syspath_prepend(about.parent)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("invented_package", None)


def said_of(agent, metric):
    """The node's series of a metric."""
    return [one for one in agent._state.series.values() if one.metric == metric]


@pytest.mark.usefixtures("_invented")
def test_what_another_package_reads_is_told_with_names_labels_and_units(program, journals):
    """A GPU is its rank's, a meter the node's; metrics of their own are described."""
    options = Options(
        policy=Policy(), readings="basic", sources=frozenset({"gpu"}), readings_s=0.05
    )
    own = {program.journal.path: program.journal.buffer}
    agent = Agent(agent_folder(program.meta), Tail(journals, own), options)

    def said():
        agent.tick()
        ranks = agent._state.ranks.values()
        series = {one.metric: one for rank in ranks for one in rank.series.values()}
        series |= {one.metric: one for one in agent._state.series.values()}
        late = [one for one in said_of(agent, names.SAMPLER_LATE.name) if one.value]
        is_read = series.keys() >= {"invented.tiles", "invented.supply.energy"}
        return series if is_read and len(late) == 2 else None

    series = wait_until(said, what="readings of the invented package")
    points = {
        data.name: data for data in Export(0, 10**9).collect(series.values(), agent._state.metrics)
    }
    agent.finish()

    gpu = {names.HW_ID: "invented-0", names.HW_NAME: "gpu0"}
    assert series[names.HW_POWER.name].labels == gpu | {names.HW_TYPE: "gpu"}
    assert series[names.GPU_UTILIZATION.name].labels == gpu | {names.HW_GPU_TASK: "general"}
    assert {name: series[name].value for name in points if name.startswith(("inv", "hw.p"))} == {
        names.HW_POWER.name: 123.0,
        "invented.tiles": 7.0,
        "invented.supply.energy": 5000.0,
    }
    tiles, supply = points["invented.tiles"], points["invented.supply.energy"]
    assert (tiles.unit, tiles.description) == ("{tile}", "Tiles that work.")
    assert (supply.unit, supply.description) == ("J", "Energy of the supply.")
    assert supply.data.monotonic
    late = [one for one in said_of(agent, names.SAMPLER_LATE.name) if one.value]
    assert {one.labels[names.SAMPLER] for one in late} == {"gpu", "broken_meter"}
