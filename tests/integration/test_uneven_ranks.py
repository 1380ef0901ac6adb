"""A slow data loader on one rank shows in the intended panels, and nowhere else.

The same program runs twice with two ranks that wait for each other in every step: once with equal
data loaders, once with that of rank 1 at half the speed. What the panels show is held against what
the ranks measured of themselves: a machine that is busy holds up now one of them, now the other.
"""

from __future__ import annotations

import json
import sys
import uuid
from typing import NamedTuple

import pytest
import warm_python
from nvml.scripted import GIB, Script
from runs import LIMIT_S, PROGRAMS, Ended, ending, environment
from servers.running import wait_until
from shown import Shown

from otel_mlperf import names

pytestmark = pytest.mark.servers

STEPS = 40
LOAD_S = 0.02
RANKS = ("0", "1")
WITHIN = 0.1
NOT_COMPARED = {
    "GPU utilization by rank": "it is scripted, and differs",
    "Involuntary context switches": "what else the machine does",
    "CPU by rank": "sleeping takes next to none",
    "Memory by rank": "it is of the process, not of its data",
    "Last step ago by rank": "both have just ended",
    "p99 step time by rank": "one step, whatever the machine does in it",
}
BY_GPU = {
    "Utilization": (0.50, 0.51),
    "Power": (300.5, 300.501),
    "Memory": (10 * GIB, 11 * GIB),
    "Memory busy": (0.20, 0.21),
    "Clock": (1755 / 1980, 0.5),
    "Temperature margin": (25, 25),
    "Performance state": (0, 0),
    "PCIe lanes and generation": (1, 0.5),
    "Active NVLinks": (17, 17),
}
"""What the scripted GPUs of rank 0 and 1 say."""
NEWS = {"GPU errors", "Last XID", "Lost GPUs", "Time throttled by policy"}
"""Panels of what has happened to a GPU meanwhile: nothing has."""
MEANT = {"Data wait by rank", "Communication per step"}


class Measured(NamedTuple):
    """Seconds of a mean step, as a rank measured them itself."""

    loading: float
    forward: float
    waiting: float

    @property
    def busy(self):
        return self.loading + self.forward


class Launched(NamedTuple):
    """What the dashboards show of a launch, and what each rank measured itself."""

    shown: Shown
    alone: list[Shown]
    """Each rank alone, at its own last metrics: what is shown of both weighs them by when they
    were heard of last, which is up to the machine."""
    ranks: dict[str, Measured]

    def mean(self, part):
        """Seconds of a step, over both ranks."""
        return sum(getattr(rank, part) for rank in self.ranks.values()) / len(self.ranks)

    def by_rank(self, panel):
        return self.shown.by("ml_distributed_rank", panel, dashboard="ranks")

    def part(self, category):
        """Seconds of a step by category, mean of the ranks."""
        return sum(parts[category] for parts in self.parts) / len(self.parts)

    @property
    def parts(self):
        """The same of each rank, by category."""
        return [rank.by("ml_section_category", "Where a step goes") for rank in self.alone]

    @property
    def step_s(self):
        return self.shown.figure("Step time", "mean")


def launch(servers, folder, loads, readings=(), **variables):
    """One rank for each load time; when their metrics have arrived.

    Rates need two points of a total, and an agent has little of a busy machine: the ranks go on
    when the first point of their steps is there, and the second of ``readings`` of each rank's GPU.
    """
    meeting, pause = folder / "meeting", folder / "pause"
    meeting.write_bytes(bytes(8 * len(loads)))
    name, run_id = f"uneven-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    ranks = [
        warm_python.Popen(
            [
                sys.executable, PROGRAMS / "uneven.py", "--meet", meeting,
                "--name", name, "--steps", str(STEPS), "--load", str(load), "--pause", pause,
            ],
            env=environment(
                folder / "runs",
                OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint,
                OTEL_METRIC_EXPORT_INTERVAL="500",
                OTEL_MLPERF_RUN_ID=run_id,
                OTEL_MLPERF_CONSOLE="false",
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(len(loads)),
                **variables,
            ),
        )
        for rank, load in enumerate(loads)
    ]  # fmt: skip
    of_ranks = f'{{ml_run_name="{name}",ml_distributed_rank!=""}}'
    awaited = [f"{names.STEPS.prometheus}{of_ranks} == 1"] + [
        f"count by (hw_name) (count_over_time({one.prometheus}{of_ranks}[10m]) > 1)"
        for one in readings
    ]
    with ending(ranks):
        for query in awaited:
            wait_until(lambda query=query: len(servers.promql(query)) == len(loads), what=query)
        pause.touch()
        assert [process.wait(LIMIT_S) for process in ranks] == [0] * len(loads)
    ended = Ended(0, "", "", folder / "runs", folder / "none").settled()
    found = ended.rows("SELECT rank, instance_id, result FROM processes ORDER BY rank")
    for row in found:
        steps = f'{names.STEPS.prometheus}{{instance="{row["instance_id"]}"}} == {STEPS}'
        wait_until(lambda query=steps: servers.promql(query), what="the last metrics")
    measured = {str(row["rank"]): Measured(**json.loads(row["result"])) for row in found}
    alone = [Shown(ended, servers, row["instance_id"], str(row["rank"])) for row in found]
    return Launched(Shown(ended, servers, found[0]["instance_id"]), alone, measured)


@pytest.fixture(scope="module")
def even(servers, tmp_path_factory):
    """Both loaders alike."""
    return launch(servers, tmp_path_factory.mktemp("even"), (LOAD_S, LOAD_S))


@pytest.fixture(scope="module")
def uneven(servers, nvml_library, tmp_path_factory):
    """That of rank 1 takes twice as long, and its GPU is hot."""
    folder = tmp_path_factory.mktemp("uneven")
    script = Script(folder / "gpus", 2)
    script.change({"1.throttle": 0x40, "1.clock.1": 990, "1.pcie_width": 8})
    return launch(
        servers,
        folder,
        (LOAD_S, 2 * LOAD_S),
        (names.HW_ENERGY, names.GPU_IO),
        LD_LIBRARY_PATH=str(nvml_library),
        FAKE_NVML_SCRIPT=str(script.path),
        CUDA_VISIBLE_DEVICES="0,1",
        OTEL_MLPERF_READINGS="comprehensive",
        OTEL_MLPERF_READINGS_INTERVAL="500",
    )


def test_the_slow_loader_shows_in_the_data_wait_of_its_rank(uneven):
    """Each rank's share of waiting is what it measured itself, and rank 1's is the larger."""
    waited = uneven.by_rank("Data wait by rank")
    measured = {rank: uneven.ranks[rank].loading / uneven.step_s for rank in RANKS}

    assert waited == pytest.approx(measured, rel=WITHIN)
    assert waited["1"] > waited["0"]


def test_the_others_wait_for_it_in_communication(uneven):
    """Rank 0 spends there what the slow rank comes later, each what it measured itself."""
    talked = uneven.by_rank("Communication per step")
    measured = {rank: uneven.ranks[rank].waiting for rank in RANKS}
    later = uneven.ranks["1"].busy - uneven.ranks["0"].busy

    assert talked == pytest.approx(measured, rel=WITHIN, abs=WITHIN * LOAD_S)
    assert talked["0"] - talked["1"] == pytest.approx(later, rel=2 * WITHIN)


def test_no_other_panel_tells_the_ranks_apart(uneven, even):
    """Wherever else ranks stand beside each other, they look alike, as with equal loaders."""
    compared = 0
    for query in uneven.shown.queries:
        if query.dashboard != "ranks" or query.panel in MEANT | NOT_COMPARED.keys():
            continue
        for launched in (uneven, even):
            found = launched.shown.ask(query.panel, query.legend, "ranks")
            values = {one.labels.get("ml_distributed_rank"): one.value for one in found}
            if found and values.keys() == set(RANKS):
                compared += 1
                print(f"{query.panel:32} {values['0']:12.6g} {values['1']:12.6g}")
                apart = WITHIN * launched.step_s if "per step" in query.panel else 0
                same = pytest.approx(values["0"], rel=WITHIN, abs=apart)
                assert values["1"] == same, query.panel

    assert compared >= 6


def test_equal_loaders_show_nothing(even):
    """With equal loaders the panels that are meant to show it show what there is, and no more."""
    waited = even.by_rank("Data wait by rank")
    talked = even.by_rank("Communication per step")
    loading = abs(even.ranks["0"].loading - even.ranks["1"].loading)
    waiting = abs(even.ranks["0"].waiting - even.ranks["1"].waiting)

    assert abs(waited["0"] - waited["1"]) < WITHIN + loading / even.step_s
    assert abs(talked["0"] - talked["1"]) < WITHIN * even.step_s + waiting


def test_a_step_grows_by_waiting_alone(uneven, even):
    """Of the parts of a step only data loading and communication grow; together they are it."""
    grown = {
        category: uneven.part(category) - even.part(category)
        for category in (names.DATA_LOADING, names.FORWARD)
    }

    margin = WITHIN * even.step_s
    loading, forward = (uneven.mean(part) - even.mean(part) for part in ("loading", "forward"))
    assert grown[names.DATA_LOADING] == pytest.approx(loading, abs=margin / 5)
    assert grown[names.FORWARD] == pytest.approx(forward, abs=margin / 5)
    steps = uneven.shown.ended.rows(
        "SELECT avg(duration_ns) / 1e9 AS mean_s FROM steps GROUP BY rank ORDER BY rank"
    )
    for step, parts in zip(steps, uneven.parts, strict=True):
        assert sum(parts.values()) == pytest.approx(step["mean_s"], rel=1e-6)


def test_time_to_finish_is_known_where_the_run_says_how_long(uneven):
    """Half of the planned steps are made, so the other half takes as long again."""
    spans = uneven.shown.ended.rows(
        "SELECT min(end_ns) / 1e9 AS first, max(end_ns) / 1e9 AS last FROM steps"
    )
    lasted = float(spans[0]["last"] - spans[0]["first"])

    assert uneven.shown.figure("Step", "planned") == 2 * STEPS
    assert uneven.shown.figure("Time to finish") == pytest.approx(lasted, rel=0.2)


@pytest.mark.parametrize("panel", BY_GPU)
def test_gpu_panels_show_what_the_gpus_said(uneven, panel):
    """From the driver through agent, Collector and Prometheus into the panel, for each GPU."""
    query = next(q for q in uneven.shown.queries if (q.panel, q.dashboard) == (panel, "gpus"))
    found = {one.labels["hw_name"]: one.value for one in uneven.shown.promql(query.expr)}

    assert found == pytest.approx(dict(zip(("gpu0", "gpu1"), BY_GPU[panel], strict=True)))


def test_every_gpu_panel_answers(uneven):
    """What NVML offers is shown; only news are not, and what containers cannot know."""
    silent = {
        query.panel
        for query in uneven.shown.queries
        if query.dashboard == "gpus" and not uneven.shown.promql(query.expr)
    }

    assert silent - NEWS <= {
        "Memory of the training process",
        "Remapped memory",  # rows are replaced, and pages on older GPUs
        "Profiler windows",  # none was asked for
    }


def test_a_hot_gpu_shows_with_its_rank(uneven):
    """Who is throttled and why, in the run's own row, and in the alert's expression."""
    (throttled,) = uneven.shown.ask("Throttled")
    wanted = {
        "hw_name": "gpu1",
        "ml_distributed_rank": "1",
        "ml_accelerator_throttle_reason": "hw_thermal_slowdown",
    }

    assert (throttled.labels | wanted, throttled.value) == (throttled.labels, 1)
    assert uneven.shown.by("ml_distributed_rank", "Lowest GPU utilization by rank") == {
        "0": 0.50,
        "1": 0.51,
    }
