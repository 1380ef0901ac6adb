"""Does Prometheus understand what the shipped dashboards ask, and answer it rightly?

The run is made up: two ranks with a GPU each on one host, for twenty minutes, so that every panel
has something to show and the right number is known.
"""

from __future__ import annotations

import time
import uuid

import pytest
from servers.dashboard import dashboard_queries, every_query, variable
from servers.feed import Made, constant, feed, growing
from servers.running import wait_until

from otel_mlperf import names

pytestmark = pytest.mark.servers

MINUTE = 60
LENGTH_S = 20 * MINUTE
SLOW_S = 5 * MINUTE
STEP_S, SLOWER = 0.5, 1.5
WAITED = (0.1, 0.2)
EXPECTED_STEPS = 10_000
LIMIT_BYTES = 80e9
GPUS = (
    {names.HW_ID: "GPU-a", names.HW_NAME: "gpu0"},
    {names.HW_ID: "GPU-b", names.HW_NAME: "gpu1"},
)
BY_GPU = {
    "Utilisation": (0.9, 0.4),
    "Power": (300, 150),
    "Memory": (60e9, 70e9),
    "Memory of the training process": (55e9, 65e9),
    "Memory busy": (0.5, 0.25),
    "Encoder and decoder": (0.0, 0.125),
    "Clock": (1, 0.5),
    "Throttled": (None, 1),
    "Time throttled": (None, 0.25),
    "Temperature": (60, 88),
    "Degrees left": (27, 0),
    "Performance state": (0, 2),
    "PCIe and NVLink": (1e9, 5e8),
    "PCIe lanes against their number": (1, 0.5),
    "NVLinks up": (18, 17),
    "Errors": (None, 1),
    "Last XID": (0, 79),
    "Memory replaced": (0, 2),
    "Repairs": (0, 1),
    "Lost GPUs": (None, 1),
}
"""What each panel of *GPUs* has to show of the two; None: nothing."""
LATE = LENGTH_S - 40
"""When a GPU breaks: in the last minute."""
NEVER = {
    "Swap and major faults",  # the made-up host does neither
    "Telemetry lost",  # nor does it lose anything
    "Restarts",  # asked for by a test of its own, over a longer range
}


def late(value):
    """A total that is 0 until the last minute."""
    return lambda age_s: value * (age_s >= LATE)


def of_a_gpu(place):
    """The series of the GPU of a rank: 0 is well, 1 is in trouble."""

    def made(metric, values, /, **labels):
        course = values[place] if callable(values[place]) else constant(values[place])
        extra = {getattr(names, name): value for name, value in labels.items()}
        return Made(metric, GPUS[place] | extra, course)

    shown = {panel: [value or 0 for value in values] for panel, values in BY_GPU.items()}
    return [
        made(names.GPU_UTILIZATION, shown["Utilisation"], HW_GPU_TASK="general"),
        made(names.GPU_UTILIZATION, shown["Encoder and decoder"], HW_GPU_TASK="encoder"),
        made(names.HW_POWER, shown["Power"], HW_TYPE="gpu"),
        made(names.POWER_LIMIT, (700, 700)),
        made(names.GPU_MEMORY_USAGE, shown["Memory"]),
        made(names.GPU_MEMORY_LIMIT, (LIMIT_BYTES, LIMIT_BYTES), HW_MODEL="H100"),
        made(names.DEVICE_PROCESS_MEMORY, shown["Memory of the training process"]),
        made(names.MEMORY_BUSY, shown["Memory busy"]),
        made(names.CLOCK, (1.98e9, 0.99e9), CLOCK_DOMAIN="sm"),
        made(names.CLOCK_LIMIT, (1.98e9, 1.98e9), CLOCK_DOMAIN="sm"),
        made(names.THROTTLE, shown["Throttled"], THROTTLE_REASON="hw_thermal_slowdown"),
        made(names.THROTTLE, (1, 1), THROTTLE_REASON="gpu_idle"),
        made(names.THROTTLE_TIME, (growing(0), growing(0.25)), THROTTLE_REASON="thermal"),
        made(names.HW_TEMPERATURE, shown["Temperature"], HW_SENSOR_LOCATION="gpu"),
        made(
            names.HW_TEMPERATURE_LIMIT, (87, 87), HW_SENSOR_LOCATION="gpu",
            HW_LIMIT_TYPE="throttled",
        ),
        made(names.TEMPERATURE_MARGIN, shown["Degrees left"]),
        made(names.PERFORMANCE_STATE, shown["Performance state"]),
        made(
            names.GPU_IO, (growing(1e9), growing(5e8)), NETWORK_DIRECTION="receive",
            ACCELERATOR_LINK="pcie",
        ),
        made(names.PCIE_WIDTH, (16, 8)),
        made(names.PCIE_WIDTH_LIMIT, (16, 16)),
        made(names.PCIE_GENERATION, (5, 5)),
        made(names.PCIE_GENERATION_LIMIT, (5, 5)),
        made(names.NVLINK_ACTIVE, shown["NVLinks up"]),
        made(names.HW_ENERGY, (growing(300), growing(150)), HW_TYPE="gpu"),
        made(names.HW_ERRORS, (late(0), late(1)), HW_TYPE="gpu", ERROR_TYPE="xid"),
        made(names.XID, shown["Last XID"]),
        made(names.ROWS_REMAPPED, shown["Memory replaced"], ERROR_TYPE="corrected"),
        made(names.PAGES_RETIRED, (0, 0), ERROR_TYPE="corrected"),
        made(names.REPAIR_PENDING, shown["Repairs"], REPAIR_TYPE="rows"),
        made(names.REPAIR_FAILED, (0, 0)),
        made(names.DEVICE_LOST, (late(0), late(1))),
    ]  # fmt: skip


def of_a_rank(rank, start_s):
    """Training of a rank: its steps take longer in the last five minutes."""
    phase = {names.ML_PHASE: names.TRAIN}
    shares = {
        names.DATA_LOADING: WAITED[rank],
        names.FORWARD: 0.6,
        names.COMMUNICATION: 0.4 - WAITED[rank],
    }
    return [
        Made(
            names.STEP_DURATION,
            phase,
            lambda age_s: STEP_S * (SLOWER if age_s > LENGTH_S - SLOW_S else 1),
        ),
        Made(names.STEPS, phase, growing(1 / STEP_S)),
        Made(names.SAMPLES, phase, growing(64 / STEP_S)),
        Made(names.TOKENS, phase, growing(4096 / STEP_S)),
        Made(names.STEP_NUMBER, phase, lambda age_s: age_s // STEP_S),
        Made(names.LAST_STEP_TIME, {}, lambda age_s: start_s + age_s),
        Made(names.STEPS_EXPECTED, {}, constant(EXPECTED_STEPS)),
        Made(names.RUN_START_TIME, {}, constant(start_s)),
        Made(names.LOSS, phase, constant(float("nan") if rank else 0.25)),
        *(
            Made(metric, {names.DEVICE_INDEX: str(device)}, constant(share * (1 + device)))
            for metric, share in (
                (names.WINDOW_DEVICE_BUSY, 0.4 - rank / 4),
                (names.WINDOW_DEVICE_EXPOSED, 0.1 + rank / 4),
            )
            for device in (0, 1)
        ),
        *(
            Made(
                names.SECTION_SELF_TIME,
                phase | {names.SECTION_CATEGORY: category, names.SECTION_NAME: category},
                growing(share),
            )
            for category, share in shares.items()
        ),
        *(
            Made(
                names.PROCESS_CPU_TIME,
                {names.PROCESS_ROLE: role, names.CPU_MODE: "user"},
                growing(cores),
            )
            for role, cores in (("main", 1), ("worker", 2))
        ),
    ]


EXAMPLES = {
    names.ML_PHASE: names.TRAIN,
    names.SECTION_CATEGORY: names.CHECKPOINT,
    names.HW_NAME: "gpu0",
    names.CONTEXT_SWITCH: "involuntary",
    names.PSI_KIND: "some",
    names.DESTINATION: "otlp",
    names.OUTCOME: "delivered",
    names.HW_PARENT: "",
}
"""Values of labels that panels choose by."""


def all_others(known):
    """One series of each metric that ``known`` has not: a total that grows by one, or a one."""
    seen = {one.metric for one in known}
    return [
        Made(
            metric,
            {label: EXAMPLES.get(label, "some") for label in metric.labels},
            growing(1) if metric.instrument == "counter" else constant(1),
        )
        for metric in names.METRICS
        if metric not in seen
    ]


@pytest.fixture(scope="module")
def run(servers):
    """The made-up run in Prometheus: its name, and its last moment."""
    name = f"run-{uuid.uuid4().hex[:12]}"
    end = time.time() // 300 * 300  # where five minutes end, for queries that look at such
    start = end - LENGTH_S
    node = {names.RUN_NAME: name, names.HOST_NAME: "node0", names.SERVICE_NAME: name}

    def send(resource, series, until=end):
        instance = {names.SERVICE_INSTANCE_ID: str(uuid.uuid4())}
        feed(servers.otlp_endpoint, node | resource | instance, series, start, until)

    ranks = [of_a_rank(rank, start) + of_a_gpu(rank) for rank in (0, 1)]
    send({names.RANK: 1}, of_a_rank(1, start - MINUTE), start + MINUTE)  # then it was restarted
    send({}, all_others(ranks[0]))
    for rank, series in enumerate(ranks):
        send({names.RANK: rank}, series)
    counted = f'max_over_time({names.STEPS.prometheus}{{ml_run_name="{name}"}}[1h])'
    wait_until(lambda: len(servers.promql(f"{counted} == {LENGTH_S / STEP_S}")) == 2)
    return name, end


@pytest.fixture
def answer(servers, run):
    """Asks a dashboard's query that has this panel and legend, always at the same moment."""
    name, at = run

    def ask(panel, legend=None, dashboard="training-run", span="1m"):
        [query, *_] = [
            one
            for one in every_query(name, span=span)
            if (one.panel, one.dashboard) == (panel, dashboard) and legend in (None, one.legend)
        ]
        return servers.promql(query.expr, at)

    return ask


def by(label, samples):
    assert len({one.labels[label] for one in samples}) == len(samples)
    return {one.labels[label]: one.value for one in samples}


@pytest.mark.parametrize("metric", names.METRICS, ids=lambda metric: metric.name)
def test_metrics_arrive_under_the_documented_name(servers, run, metric):
    """Prometheus makes of each metric the name that the package says, with its labels."""
    name, at = run
    found = servers.promql(f'{metric.prometheus}{{ml_run_name="{name}"}}', at)

    assert found
    labels = {label.replace(".", "_") for label in metric.labels} - {"hw_parent"}
    assert set().union(*(one.labels for one in found)) >= labels


def test_every_panel_has_an_answer(servers, run):
    """With every metric there, no panel is empty; all answers are printed."""
    name, at = run
    empty = set()
    for query in every_query(name):
        found = servers.promql(query.expr, at)
        empty |= {query.panel} if not found else set()
        for sample in found:
            labels = " ".join(sample.labels.values())
            where = f"{query.dashboard:13} {query.panel:32}"
            print(f"{where} {labels or query.legend:40} {sample.value:>14,.6g}")

    assert empty <= NEVER


@pytest.mark.parametrize("panel", BY_GPU)
def test_gpu_panels_show_each_gpu(answer, panel):
    """Each panel of *GPUs* has the number of each device, and nothing of what is well."""
    wanted = {
        gpu[names.HW_NAME]: pytest.approx(value, rel=0.4 if value == 1 else 1e-6, abs=1e-9)
        for gpu, value in zip(GPUS, BY_GPU[panel], strict=True)
        if value is not None
    }
    samples = answer(panel, dashboard="gpus")
    if panel == "Throttled":
        assert {one.labels["ml_accelerator_throttle_reason"] for one in samples} == {
            "hw_thermal_slowdown"
        }

    assert by("hw_name", samples) == wanted


def test_device_row_shows_each_rank(answer):
    """The run's own row has them by rank: the least busy, the fullest, the slow clock."""
    assert by("ml_distributed_rank", answer("Lowest GPU utilisation by rank")) == {
        "0": 0.9,
        "1": 0.4,
    }
    assert by("ml_distributed_rank", answer("GPU memory")) == {"0": 60e9, "1": 70e9}
    assert [one.value for one in answer("GPU memory", "limit")] == [LIMIT_BYTES]
    assert by("ml_distributed_rank", answer("Clock")) == {"0": 1, "1": 0.5}
    (error,) = answer("ECC errors and XIDs")
    assert (error.labels["hw_name"], error.labels["error_type"]) == ("gpu1", "xid")


def test_profiler_windows_show_the_worst_device_of_each_rank(answer):
    """The least busy of its devices, and the one that waits longest for others."""
    busy, exposed = (
        by("ml_distributed_rank", answer("Profiler windows", legend, "gpus"))
        for legend in ("rank {{ml_distributed_rank}} busy", "rank {{ml_distributed_rank}} exposed")
    )

    assert busy == pytest.approx({"0": 0.4, "1": 0.15})
    assert exposed == pytest.approx({"0": 0.2, "1": 0.7})


def test_energy_is_of_a_step(answer):
    """Watts of all GPUs times the time of a step."""
    (sample,) = answer("Energy per step", dashboard="gpus")

    assert sample.value == pytest.approx(450 * STEP_S, rel=1e-6)


def test_step_time_is_held_against_its_own_normal(answer):
    """Five minutes of steps that take half as long again show as 150 %."""
    (sample,) = answer("Step time against its normal")

    assert sample.value == pytest.approx(SLOWER, rel=1e-6)


def test_step_time_is_the_time_of_the_steps(answer):
    """Mean, median and 95th percentile of equal steps are all their duration."""
    for legend in ("mean", "p50", "p95"):
        (sample,) = answer("Step time", legend)
        assert sample.value == pytest.approx(STEP_S * SLOWER, rel=0.05)


def test_time_to_finish_is_that_of_the_steps_that_are_left(answer):
    """Steps that are left times the time that one took of late."""
    (sample,) = answer("Time to finish")

    left = EXPECTED_STEPS - LENGTH_S / STEP_S - 1
    assert sample.value == pytest.approx(left * STEP_S, rel=1e-3)


def test_throughput_counts_steps_once_and_samples_of_all_ranks(answer):
    """Both ranks make the same steps, with samples and tokens of their own."""
    found = [
        answer("Throughput", legend)[0].value for legend in ("steps/s", "samples/s", "tokens/s")
    ]

    assert found == pytest.approx([1 / STEP_S, 2 * 64 / STEP_S, 2 * 4096 / STEP_S], rel=1e-6)


def test_ranks_are_told_apart_by_what_differs(answer):
    """Data wait and communication of each rank; nobody is behind, and one was started again."""
    waited = by("ml_distributed_rank", answer("Data wait by rank", dashboard="ranks"))
    talked = by("ml_distributed_rank", answer("Communication per step", dashboard="ranks"))
    behind = by("ml_distributed_rank", answer("Steps behind", dashboard="ranks"))
    started = by("ml_distributed_rank", answer("Restarts", dashboard="ranks", span="20m"))

    assert waited == pytest.approx({"0": WAITED[0], "1": WAITED[1]}, rel=1e-6)
    assert talked == pytest.approx({"0": 0.3 * STEP_S, "1": 0.2 * STEP_S}, rel=1e-6)
    assert behind == {"0": 0, "1": 0}
    assert started == {"0": 0, "1": 1}


def test_workers_count_with_their_process(answer):
    """The run's row adds DataLoader workers to their rank, *Host* shows them by role."""
    by_role = answer("CPU of the processes", dashboard="host")

    assert by("ml_distributed_rank", answer("CPU")) == pytest.approx({"0": 3, "1": 3}, rel=1e-6)
    assert sorted(round(one.value, 6) for one in by_role) == [1, 1, 2, 2]


def test_a_loss_that_is_no_number_is_counted_and_not_averaged(answer):
    """One rank has diverged: the panel says one, and the loss is that of the other."""
    (diverged,) = answer("Ranks whose loss is not a number")

    assert diverged.value == 1
    assert by("ml_phase", answer("Loss")) == {"train": 0.25}


def test_nothing_lost_is_a_zero_not_a_gap(answer):
    """A run that lost nothing shows 0, since an empty panel would leave it open."""
    (lost,) = answer("Lost telemetry")

    assert lost.value == 0


def test_the_list_of_runs_has_the_newest_first(servers, run):
    """The query of the run variable gives the made-up run before older ones."""
    name, at = run
    start = names.RUN_START_TIME.prometheus
    query = f"sort_desc(max by (ml_run_name) (last_over_time({start}[1h])))"
    found = servers.promql(query, at + 1)

    assert name in {one.labels["ml_run_name"] for one in found}
    assert [one.value for one in found] == sorted((one.value for one in found), reverse=True)


@pytest.fixture(scope="module")
def namesakes(servers):
    """Two runs of one name at the same time: their name and ids, the newer first."""
    name, at = f"train-{uuid.uuid4().hex[:12]}", time.time() // 15 * 15
    ids = [uuid.uuid4().hex for _ in range(2)]
    for place, run_id in enumerate(ids):
        start = at - MINUTE * (place + 1)
        resource = {
            names.RUN_NAME: name,
            names.RUN_ID: run_id,
            names.RANK: 0,
            names.SERVICE_NAME: name,
            names.SERVICE_INSTANCE_ID: str(uuid.uuid4()),
        }
        series = [
            Made(names.RUN_START_TIME, {}, constant(start)),
            Made(names.LOSS, {names.ML_PHASE: names.TRAIN}, constant(place + 0.5)),
        ]
        feed(servers.otlp_endpoint, resource, series, start, at)
    wait_until(lambda: len(servers.promql(variable("id", name), at)) == 2)
    return name, ids, at


def test_runs_of_one_name_are_chosen_by_id(servers, namesakes):
    """Ids have the newest first, and a panel shows the run whose processes an id leads to."""
    name, ids, at = namesakes
    listed = [one.labels["ml_run_id"] for one in servers.promql(variable("id", name), at)]
    shown = []
    for run_id in listed:
        processes = servers.promql(variable("instance", name, run_id), at)
        instance = "|".join(one.labels["instance"] for one in processes)
        (loss,) = (q for q in dashboard_queries(name, instance=instance) if q.panel == "Loss")
        shown.append([one.value for one in servers.promql(loss.expr, at)])

    assert listed == ids
    assert shown == [[0.5], [1.5]]
