"""Prometheus understands the queries of the shipped dashboards, and answers them correctly.

The run is made up: two ranks with a GPU each on one host, for twenty minutes, so that every panel
has something to show and the right number is known.
"""

from __future__ import annotations

import statistics
import time
import uuid

import pytest
from servers.dashboard import COMPARES, dashboard_queries, every_query, variable
from servers.feed import Made, constant, feed, growing
from servers.made_up_run import (
    BY_GPU,
    DEPTH,
    EXPECTED_STEPS,
    GPUS,
    LENGTH_S,
    LIMIT_BYTES,
    MINUTE,
    OWN,
    REQUEST_S,
    SIZE,
    SLOWER,
    STEP_S,
    TOKENS,
    WAITED,
    WORKED,
    all_others,
    of_a_gpu,
    of_a_rank,
    own_numbers,
)
from servers.running import wait_until

from otel_mlperf import names

pytestmark = pytest.mark.servers

NEVER = {
    "Swap and major faults",  # the made-up host does neither
    "Lost items by reason",  # nor does it lose anything
    "Restarts",  # asked for by a test of its own, over a longer range
}


@pytest.fixture(scope="module")
def run(servers):
    """The made-up run in Prometheus: its name, and its last moment."""
    name = f"run-{uuid.uuid4().hex[:12]}"
    end = time.time() // 300 * 300  # where five minutes end, for queries that look at such
    start = end - LENGTH_S
    node = {names.RUN_NAME: name, names.HOST_NAME: "node0", names.SERVICE_NAME: name}
    node[names.RUN_ID] = uuid.uuid4().hex

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


@pytest.fixture(scope="module")
def both(servers, run):
    """The names of the made-up run and of another one, twice as fast in twice as many steps."""
    name, at = run
    other = f"{name}-faster"
    resource = {names.RUN_NAME: other, names.SERVICE_NAME: other, names.RANK: 0}
    resource |= {names.RUN_ID: "f" * 32, names.SERVICE_INSTANCE_ID: str(uuid.uuid4())}
    phase = {names.ML_PHASE: names.TRAIN}
    section = phase | {names.SECTION_NAME: "request", names.SECTION_CATEGORY: names.REQUEST}
    series = [
        *own_numbers(times=2),
        Made(names.STEP_DURATION, phase, constant(STEP_S / 2)),
        Made(names.STEPS, phase, growing(2 / STEP_S)),
        Made(names.LOSS, phase, constant(0.125)),
        Made(names.SECTION_SELF_TIME, section, growing(0.8)),
        Made(names.SECTION_DURATION, section, constant(0.04)),
        Made(names.SECTION_BOUNDED, section, growing(10)),
        Made(names.SECTION_WITHIN, section, growing(8)),
    ]
    feed(servers.otlp_endpoint, resource, series, at - LENGTH_S, at)
    wait_until(lambda: servers.promql(f'ml_user_depth{{ml_run_name="{other}"}}', at))
    return name, other


@pytest.mark.parametrize(
    ("panel", "section", "wanted"),
    [
        ("Step time by run", None, (STEP_S * SLOWER, STEP_S / 2)),
        ("p95 step time by run", None, (STEP_S * SLOWER, STEP_S / 2)),
        ("p95 by section", "request", (REQUEST_S[1], 0.04)),
        ("Self time by section", "request", (None, 0.8 * STEP_S / 2)),
        ("Calls by section", "request", (2, 1)),
        ("Share within the duration limit", "request", (0.95, 0.8)),
        ("Loss by run", None, (0.25, 0.125)),
        ("Custom counters", None, (2 * OWN[TOKENS], 2 * OWN[TOKENS])),
        ("Custom gauges and logged values", None, (OWN[DEPTH], 2 * OWN[DEPTH])),
        ("p95 of custom histograms", None, (OWN[SIZE], OWN[SIZE])),
    ],
)
def test_two_runs_are_two_lines(servers, run, both, panel, section, wanted):
    """Each with its own number, all its ranks together, and by its name and the id's begin."""
    _, at = run
    (query,) = (
        one for one in dashboard_queries("|".join(both), path=COMPARES) if one.panel == panel
    )
    found = [
        one for one in servers.promql(query.expr, at)
        if section in (None, one.labels.get("ml_section_name"))
    ]  # fmt: skip

    expected = {
        name: pytest.approx(number, rel=0.06)
        for name, number in zip(both, wanted, strict=True)
        if number is not None
    }
    assert by("ml_run_name", found) == expected
    assert by("ml_run_id", found)["f" * 8] == expected[both[1]]


def test_goodput_and_requests_of_both_ranks(answer):
    """Goodput is the mean of the ranks; of requests all ranks' count together."""
    (goodput,) = answer("Goodput")
    (within,) = answer("Requests within the duration limit")
    took = {
        one.labels["ml_section_name"]
        for one in answer("Request duration", "{{ml_section_name}} p50")
    }
    (slowest,) = answer("Request duration", "{{ml_section_name}} p99")

    assert goodput.value == pytest.approx(statistics.fmean(WORKED), rel=0.05)
    assert within.value == pytest.approx(0.95)
    assert took == {"request"}
    assert slowest.value == pytest.approx(max(REQUEST_S), rel=0.05)


def test_device_row_shows_each_rank(answer):
    """The run's own row has them by rank: the least busy, the fullest, the slow clock."""
    assert by("ml_distributed_rank", answer("Lowest GPU utilization by rank")) == {
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
    (sample,) = answer("Step time vs. 6 h median")

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
    (diverged,) = answer("NaN losses")

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
