"""The dashboards and the alerts show a real training like its run folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python
import yaml
from runs import LIMIT_S, PROGRAMS, Ended, environment
from servers.dashboard import annotations, selectors, trace_search
from servers.running import DEPLOY
from shown import WINDOW_S, Shown, arrived, instance_of

from otel_mlperf import names
from otel_mlperf.analysis.run.item_accounts import lost, read_accounts

pytestmark = pytest.mark.servers

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"
EPOCHS = 16
"""Some seconds also on a fast machine: workers are read once they are a second old."""
GROWTH = 1.1
"""More than the ratio of a histogram bucket's bounds for a run of some hundred steps."""
EMPTY = {
    "Custom counters": "the example counts nothing of its own",
    "Custom gauges and logged values": "it logs the loss alone, which has a panel",
    "p95 of custom histograms": "nor has it a histogram",
    "Open now": "the run has ended",
    "Lost items by reason": "nothing was",
    "Step time vs. 6 h median": "a run of seconds has no history",
    "Communication per step": "one rank does not communicate",
    "Throttled by the CPU quota": "there is no quota",
    "Request duration": "the example makes none",
    "Requests per second": "the example makes none",
    "Unexplained items": "looked at every 15 s",
}
"""Panels without an answer though their metrics are there, and why."""
COLLECTIONS = {names.GARBAGE_COLLECTION, names.SPAN_COLLECTION}
RANK = "rank {{ml_distributed_rank}}"
ALERTS = {
    rule["alert"]: re.fullmatch(r"(?s)(.*) ([<>]) ([\d.]+)", rule["expr"]).groups()
    for group in yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())["groups"]
    for rule in group["rules"]
}
"""What each alert looks at, on which side of what it fires."""
NEAR = {"DataWait", "LowGoodput"}
"""The example does wait for about so much of its time, but not for ten minutes; and it is younger
than the half hour of which the other looks at the productive part."""


@pytest.fixture(scope="module")
def shown(servers, tmp_path_factory):
    """The example, trained; metrics go out every second, so that a short run has several.

    Started cold: what its first step imports is a part of its seconds.
    """
    folder = tmp_path_factory.mktemp("dashboard")
    options = ["--epochs", str(EPOCHS), "--checkpoint", str(folder / "digits.pt")]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *options],
        env=environment(
            folder / "runs",
            OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint,
            OTEL_METRIC_EXPORT_INTERVAL="1000",
            OTEL_MLPERF_READINGS="comprehensive",
            OTEL_MLPERF_READINGS_INTERVAL="500",
        ),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended = Ended(0, done.stdout, done.stderr, folder / "runs", folder / "none").settled()
    (counted,) = ended.rows("SELECT count(*) AS steps FROM steps WHERE phase = 'train'")
    arrived(servers, ended, counted["steps"])
    return Shown(ended, servers, instance_of(ended))


def test_every_panel_answers_or_says_why_not(shown):
    """A panel is empty only where the run has not sent its metrics, or for a stated reason."""
    for query in shown.queries:
        found = shown.promql(query.expr)
        where = f"{query.dashboard:13} {query.panel:32}"
        for sample in found:
            labels = " ".join(sample.labels.values())
            print(f"{where} {labels or query.legend:30} {sample.value:>16,.6g}")
        if found:
            continue
        missing = [name for name, _ in selectors(query.expr) if not shown.has(name)]
        reason = f"not sent: {', '.join(missing)}" if missing else EMPTY.get(query.panel)
        print(f"{where} {'-':30} {reason}")
        assert query.none
        assert reason or query.expr.endswith("> 0"), query


def test_every_alert_is_evaluated_and_none_of_a_good_run_fires(shown, servers):
    """Prometheus evaluates every rule without an error, and finds nothing that lasts."""
    rules = servers.rules()
    for alert, (looks_at, sign, bound) in ALERTS.items():
        mine = [s for s in shown.promql(looks_at) if s.labels.get("ml_run_name") == shown.run]
        for sample in mine:
            print(f"{alert:22} {sample.value:>12,.6g}   fires {sign} {bound}")
            passes = sample.value <= float(bound) if sign == ">" else sample.value >= float(bound)
            assert passes or alert in NEAR
        if not mine:
            print(f"{alert:22} {'-':>12}   no such metric, or too young")

    assert not servers.promql(f'ALERTS{{alertstate="firing",ml_run_name="{shown.run}"}}')
    assert {rule["name"] for rule in rules} == ALERTS.keys()
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} <= {
        ("ok", ""),
        ("unknown", ""),  # not evaluated yet
    }


def test_alerts_look_at_what_is_in_the_store(shown):
    """Age of the last step and share of data wait are the store's."""
    age, waiting = (
        next(s.value for s in shown.promql(ALERTS[name][0]) if s.labels["ml_run_name"] == shown.run)
        for name in ("RunMakesNoSteps", "DataWait")
    )
    ended = shown.one("SELECT max(end_ns) FROM steps") / 1e9

    assert age == pytest.approx(shown.at - ended, abs=1e-3)
    assert waiting == pytest.approx(shown.figure("Data wait"), rel=1e-6)


def test_traces_are_those_of_the_sampled_steps(shown, servers):
    """The table of traces lists what the run folder has as spans of training steps."""
    rows = shown.ended.rows("SELECT trace_id FROM spans WHERE name = 'train.step'")
    sampled = {row["trace_id"] for row in rows}
    service = shown.promql(f'{names.RUN_START_TIME.prometheus}{{ml_run_name="{shown.run}"}}')
    search = trace_search(service[0].labels["service_name"], shown.run_id)

    assert sampled
    assert servers.jaeger_search(search | {"limit": str(len(sampled) + 1)}) == sampled
    listed = servers.jaeger_search(search)
    assert listed <= sampled
    assert len(listed) == min(int(search["limit"]), len(sampled))


def test_steps_and_samples_are_those_in_the_store(shown):
    """The counts behind the rates, and the last step's number, are exact."""
    steps = shown.one("SELECT count(*) FROM steps WHERE phase = 'train'")
    samples = shown.one("SELECT sum(samples) FROM steps WHERE phase = 'train'")

    assert steps == EPOCHS * 44
    assert shown.figure("Throughput", "steps/s") * WINDOW_S == pytest.approx(steps, rel=1e-9)
    samples = pytest.approx(int(samples), rel=1e-9)
    assert shown.figure("Throughput", "samples/s") * WINDOW_S == samples
    by_rank = shown.by("ml_distributed_rank", "Samples per second by rank", dashboard="ranks")
    assert by_rank["0"] * WINDOW_S == samples
    last = shown.one("SELECT max(number) FROM steps WHERE phase = 'train'")
    assert shown.figure("Step", "step") == last


def test_validation_is_counted_for_itself(shown, servers):
    """Steps of the validation are in Prometheus, in number and time, and in no training figure."""
    which = f'{{instance="{instance_of(shown.ended)}",ml_phase="validate"}}'
    ((count, seconds),) = (
        row.values()
        for row in shown.ended.rows(
            "SELECT count(*) AS n, sum(duration_ns) / 1e9 AS s FROM steps WHERE phase = 'validate'"
        )
    )

    (steps,) = servers.promql(f"{names.STEPS.prometheus}{which}", shown.at)
    (durations,) = servers.promql(f"{names.STEP_DURATION.prometheus}{which}", shown.at)
    assert count == EPOCHS * 12
    assert (steps.value, durations.value) == (count, count)
    assert float(durations.histogram["sum"]) == pytest.approx(seconds, rel=1e-9)


def test_step_time_is_that_of_the_store(shown):
    """The mean is exact; quantiles lie within a bucket of the steps around them."""
    found = shown.ended.rows("SELECT duration_ns FROM steps WHERE phase = 'train'")
    durations = sorted(row["duration_ns"] / 1e9 for row in found)

    mean = pytest.approx(sum(durations) / len(durations), rel=1e-9)
    assert shown.figure("Step time", "mean") == mean
    assert shown.by("ml_distributed_rank", "Step time by rank", dashboard="ranks") == {"0": mean}
    for legend, part in (("p50", 0.5), ("p95", 0.95)):
        at = int(part * len(durations))
        answer = shown.figure("Step time", legend)
        assert durations[at - 1] / GROWTH <= answer <= durations[at + 1] * GROWTH


def test_data_wait_is_that_of_the_store(shown):
    """The share of waiting is exact, in the figure and by rank."""
    waited = shown.one(
        "SELECT sum(self_ns) FROM sections WHERE phase = 'train' AND n NOTNULL AND NOT beside "
        "AND category = 'data_loading'"
    )
    share = waited / shown.one("SELECT sum(duration_ns) FROM steps WHERE phase = 'train'")

    assert 0 < share < 1
    assert shown.figure("Data wait") == pytest.approx(float(share), rel=1e-6)
    for dashboard in ("training-run", "ranks"):
        by_rank = shown.by("ml_distributed_rank", "Data wait by rank", dashboard=dashboard)
        assert by_rank == {"0": pytest.approx(float(share), rel=1e-6)}


@pytest.mark.parametrize(
    ("panel", "column"), [("Where a step goes", "category"), ("Most expensive sections", "name")]
)
def test_self_times_are_those_of_the_store_and_add_up(shown, panel, column):
    """Each part of a step is the store's, and all together are the step.

    But for a garbage collection in the last second: of one sample there is no rate.
    """
    steps = shown.one("SELECT count(*) FROM steps WHERE phase = 'train'")
    stored = {
        row["part"]: row["seconds"] / steps
        for row in shown.ended.rows(
            f"SELECT {column} AS part, sum(self_ns) / 1e9 AS seconds FROM sections "
            "WHERE phase = 'train' AND n NOTNULL AND NOT beside GROUP BY part"
        )
    }
    own = {"category": "step", "name": "train.step"}[column]
    stored[own] = shown.one("SELECT avg(self_ns) / 1e9 FROM steps WHERE phase = 'train'")

    answer = shown.by(f"ml_section_{column}", panel)
    late = {part: stored.pop(part) for part in COLLECTIONS & stored.keys() - answer.keys()}
    assert answer == pytest.approx(stored, rel=1e-6)
    parts = sum(answer.values()) + sum(late.values())
    assert parts == pytest.approx(shown.figure("Step time", "mean"), rel=1e-6)


def test_loss_is_the_last_one_logged(shown):
    """The loss is that of the last step."""
    logged = shown.one(
        "SELECT arg_max(value, time_ns) FROM values WHERE name = 'loss' AND phase = 'train'"
    )

    assert shown.by("ml_phase", "Loss") == {"train": pytest.approx(logged, rel=1e-9)}


def read_of_rank_0(shown, metric):
    """Labels as JSON to the values that were read, in the order of time, until the last export."""
    found = shown.ended.rows(
        "SELECT labels, list(value ORDER BY time_ns) AS read FROM readings "
        f"WHERE rank = 0 AND name = '{metric.name}' AND time_ns <= {int(shown.at * 1e9)} GROUP BY 1"
    )
    return {row["labels"]: row["read"] for row in found}


def test_memory_is_that_of_process_and_workers_as_last_read(shown):
    """The workers' memory is added to their rank's, as the run folder has it."""
    (workers,) = read_of_rank_0(shown, names.PROCESS_COUNT).values()
    assert shown.figure("Workers", dashboard="host") == workers[-1] > 0
    last = [read[-1] for read in read_of_rank_0(shown, names.PROCESS_MEMORY).values()]

    assert len(last) >= 2
    for panel, dashboard in (("Memory of processes", "training-run"), ("Memory by rank", "ranks")):
        assert shown.by("ml_distributed_rank", panel, RANK, dashboard) == {"0": sum(last)}


def test_cpu_time_is_that_of_process_and_workers(shown):
    """Totals in Prometheus were all read so, and the panel shows by how much they grew."""
    read = read_of_rank_0(shown, names.PROCESS_CPU_TIME)
    series = f'{names.PROCESS_CPU_TIME.prometheus}{{ml_run_name="{shown.run}"}}'
    first, last, count = (
        {frozenset(one.labels.items()): one.value for one in shown.promql(asked)}
        for asked in (f"{which}_over_time({series}[1h])" for which in ("min", "max", "count"))
    )
    grown = {which: last[which] - first[which] for which in first}
    # Prometheus adds what may have grown before the first reading and after the last: half and 1.1
    # of the mean distance of two, at most.
    added = sum(1.6 / (count[which] - 1) * more for which, more in grown.items() if more)

    assert {*first.values(), *last.values()} <= {
        value for values in read.values() for value in values
    }
    assert sum(grown.values()) > 0
    for panel, dashboard in (("CPU", "training-run"), ("CPU by rank", "ranks")):
        found = shown.by("ml_distributed_rank", panel, RANK, dashboard)
        assert -1e-6 <= found["0"] * WINDOW_S - sum(grown.values()) <= added + 1e-6


def test_age_of_the_last_step_counts_from_its_end(shown):
    """The last step ended when the run folder says it did."""
    ended = shown.one("SELECT max(end_ns) FROM steps") / 1e9

    assert shown.figure("Last step ago") == pytest.approx(shown.at - ended, abs=1e-3)


def test_each_rank_is_in_one_section_until_it_ends(shown, servers):
    """Of all sections that a rank has been seen in, only the last is open; after the end none."""
    query = next(query for query in shown.queries if query.panel == "Open now")
    last = float(shown.one("SELECT max(end_ns) / 1e9 FROM steps"))
    found = servers.promql(query.expr, last)

    assert [sample.labels["ml_distributed_rank"] for sample in found] == ["0"]
    assert 0 <= found[0].value < 60
    assert shown.ask("Open now") == []


def test_overhead_is_that_of_the_store(shown):
    """Recording time is what the process counted."""
    stored = shown.one("SELECT max(overhead_ns) / 1e9 FROM processes")

    assert stored > 0
    found = shown.by("ml_distributed_rank", "Overhead by rank", dashboard="health")
    assert found["0"] * WINDOW_S == pytest.approx(stored, rel=1e-6)
    assert shown.figure("Recording overhead", dashboard="health") == found["0"]


def test_nothing_was_lost(shown):
    """Dashboard and accounts agree that nothing was lost."""
    for dashboard in ("training-run", "health"):
        assert shown.figure("Lost telemetry", dashboard=dashboard) == 0
    assert lost(read_accounts(shown.ended.folder)) == 0


def test_marks_are_where_things_happened(shown, servers):
    """Start, checkpoints and validation are marked, the start at its very time."""
    start, checkpoint, validation = (
        servers.promql(expr, shown.at) for expr in annotations(shown.run, f"{WINDOW_S}s")
    )
    began = shown.one("SELECT min(start_ns) / 1e6 FROM processes")
    checks = shown.one("SELECT sum(count) FROM sections WHERE name = 'checkpoint'")

    assert start[0].value == pytest.approx(float(began), abs=1)
    assert checkpoint[0].value == pytest.approx(int(checks), rel=0.01)
    assert validation[0].value * WINDOW_S == pytest.approx(EPOCHS * 12, rel=1e-9)


def test_losses_show_whichever_rank_is_chosen(servers, tmp_path):
    """What the node's agent counts as lost is shown once an item, also for a single rank."""
    (tmp_path / "meeting").mkdir()
    runs = tmp_path / "runs"
    warm_python.run(
        [
            sys.executable, PROGRAMS / "ranks.py", "--meet", tmp_path / "meeting",
            "--steps", "20000",
        ],
        env=environment(
            runs,
            OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint,
            OTEL_MLPERF_JOURNAL_ROWS="2048",
            OTEL_SERVICE_NAME="ranks",
        ),
        capture_output=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    ended = Ended(0, "", "", runs, runs).settled()
    (counted,) = ended.rows("SELECT count(*) AS steps FROM steps")
    arrived(servers, ended, counted["steps"])
    missing = lost(read_accounts(ended.folder))

    assert missing > 0
    for rank in (".*", "0"):
        assert Shown(ended, servers, instance_of(ended), rank).figure("Lost telemetry") == missing
