"""Does the dashboard show of a real training what its run folder says?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from runs import PROGRAMS, Ended, environment
from servers.dashboard import dashboard_queries
from servers.running import wait_until

from otel_mlperf import names
from otel_mlperf.analysis.accounting import lost, read_accounts

pytestmark = pytest.mark.servers

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"
EPOCHS = 4
WINDOW_S = 600
GROWTH = 1.1
"""More than the ratio of a histogram bucket's bounds for a run of some hundred steps."""
SILENT = {("Step", "of"), ("Telemetry lost", "all"), ("Open now", "all")}
"""Queries about what this run does not have: a planned number of steps, losses, and as it has
ended an open section."""
RANK = "rank {{ml_distributed_rank}}"


class Shown:
    """A run that has ended, and what the dashboard shows of it at its last metrics."""

    def __init__(self, ended, servers, instance, rank=".*"):
        self.ended, self._servers = ended, servers
        newest = f'max(timestamp({names.STEPS.prometheus}{{instance="{instance}"}}))'
        # The end of the last sample, so that rates are not extrapolated beyond it.
        (self.at,) = (sample.value for sample in servers.promql(newest))
        (row,) = ended.rows("SELECT DISTINCT service FROM processes")
        self.queries = dashboard_queries(row["service"], rank, f"{WINDOW_S}s")

    def ask(self, panel, legend=None):
        """The samples of a panel; its legend where it has several."""
        (query,) = (q for q in self.queries if q.panel == panel and legend in (None, q.legend))
        return self._servers.promql(query.expr, self.at)

    def figure(self, panel, legend=None):
        """The one number of a panel."""
        (sample,) = self.ask(panel, legend)
        return sample.value

    def by(self, label, panel):
        """The numbers of a panel by one of their labels."""
        found = self.ask(panel)
        assert len({sample.labels[label] for sample in found}) == len(found)
        return {sample.labels[label]: sample.value for sample in found}

    def one(self, sql):
        """The only value of a query of the run folder."""
        ((value,),) = (row.values() for row in self.ended.rows(sql))
        return value


def instance_of(ended):
    (row,) = ended.rows("SELECT DISTINCT instance_id FROM processes")
    return row["instance_id"]


def arrived(servers, instance, steps):
    """Waits until Prometheus has the last metrics of a run."""
    query = f'{names.STEPS.prometheus}{{instance="{instance}",ml_phase="train"}} == {steps}'
    wait_until(lambda: servers.promql(query), 20, f"{steps} steps")


@pytest.fixture(scope="module")
def shown(servers, tmp_path_factory):
    """The example, trained; metrics go out every second, so that a short run has several."""
    folder = tmp_path_factory.mktemp("dashboard")
    options = ["--epochs", str(EPOCHS), "--checkpoint", str(folder / "digits.pt")]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *options],
        env=environment(
            folder / "runs",
            OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint,
            OTEL_METRIC_EXPORT_INTERVAL="1000",
        ),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended = Ended(0, done.stdout, done.stderr, folder / "runs", folder / "none").settled()
    (counted,) = ended.rows("SELECT count(*) AS steps FROM steps WHERE phase = 'train'")
    instance = instance_of(ended)
    arrived(servers, instance, counted["steps"])
    return Shown(ended, servers, instance)


def test_every_panel_answers(shown):
    """Each query of each panel has an answer but those about what the run does not have."""
    silent = set()
    for query in shown.queries:
        found = shown.ask(query.panel, query.legend)
        if not found:
            silent.add((query.panel, "all" if "{{" in query.legend else query.legend))
        for sample in found:
            labels = " ".join(v for k, v in sample.labels.items() if k != "ml_distributed_rank")
            print(f"{query.panel:30} {labels or query.legend:20} {sample.value:>16,.6g}")

    assert silent == SILENT


def test_steps_and_samples_are_those_in_the_store(shown):
    """The counts behind the rates, and the last step's number, are exact."""
    steps = shown.one("SELECT count(*) FROM steps WHERE phase = 'train'")
    samples = shown.one("SELECT sum(samples) FROM steps WHERE phase = 'train'")

    assert steps == EPOCHS * 44
    for panel in ("Steps per second", "Steps and samples per second"):
        assert shown.figure(panel, "steps/s") * WINDOW_S == pytest.approx(steps, rel=1e-9)
    for panel in ("Samples per second", "Steps and samples per second"):
        assert shown.figure(panel, "samples/s") * WINDOW_S == pytest.approx(int(samples), rel=1e-9)
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
    assert shown.by("ml_distributed_rank", "Step time by rank") == {"0": mean}
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
    by_rank = shown.by("ml_distributed_rank", "Data wait share")
    assert by_rank == {"0": pytest.approx(float(share), rel=1e-6)}


@pytest.mark.parametrize(
    ("panel", "column"), [("Self time per step", "category"), ("Where a step goes", "name")]
)
def test_self_times_are_those_of_the_store_and_add_up(shown, panel, column):
    """Each part of a step is the store's, and all together are the step."""
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
    assert answer == pytest.approx(stored, rel=1e-6)
    assert sum(answer.values()) == pytest.approx(shown.figure("Step time", "mean"), rel=1e-6)


def test_loss_is_the_last_one_logged(shown):
    """The loss is that of the last step."""
    logged = shown.one(
        "SELECT arg_max(value, time_ns) FROM values WHERE name = 'loss' AND phase = 'train'"
    )

    assert shown.by("ml_phase", "Loss") == {"train": pytest.approx(logged, rel=1e-9)}


def test_process_figures_are_the_last_readings(shown):
    """CPU time and memory are what the run folder holds as last read."""
    read = {
        (row["name"], row["labels"]): row["value"]
        for row in shown.ended.rows(
            "SELECT name, labels, arg_max(value, time_ns) AS value FROM readings GROUP BY ALL"
        )
    }
    cpu = sum(value for (name, _), value in read.items() if name == names.PROCESS_CPU_TIME.name)
    (memory,) = (v for (name, _), v in read.items() if name == names.PROCESS_MEMORY.name)

    shown_cpu = shown.by("ml_distributed_rank", "Process CPU")["0"] * WINDOW_S
    assert shown_cpu == pytest.approx(cpu, rel=1e-6)
    assert shown.by("ml_distributed_rank", "Process memory") == {"0": memory}


def test_age_of_the_last_step_counts_from_its_end(shown):
    """The last step ended when the run folder says it did."""
    ended = shown.one("SELECT max(end_ns) FROM steps") / 1e9

    assert shown.figure("Last step ago") == pytest.approx(shown.at - ended, abs=1e-3)


def test_each_rank_is_in_one_section_until_it_ends(shown, servers):
    """Of all sections that a rank has been seen in, only the last is open; after the end none."""
    (query,) = [query for query in shown.queries if query.panel == "Open now"]
    last = float(shown.one("SELECT max(end_ns) / 1e9 FROM steps"))
    found = servers.promql(query.expr, last)

    assert [sample.labels["ml_distributed_rank"] for sample in found] == ["0"]
    assert 0 <= found[0].value < 60
    assert shown.ask("Open now") == []


def test_overhead_is_that_of_the_store(shown):
    """Recording time is what the process counted."""
    stored = shown.one("SELECT max(overhead_ns) / 1e9 FROM processes")

    assert stored > 0
    found = shown.by("ml_distributed_rank", "Overhead")["0"] * WINDOW_S
    assert found == pytest.approx(stored, rel=1e-6)


def test_nothing_was_lost(shown):
    """Dashboard and accounts agree that nothing was lost."""
    assert shown.figure("Lost telemetry") == lost(read_accounts(shown.ended.folder)) == 0


def test_losses_show_whichever_rank_is_chosen(servers, tmp_path):
    """What the node's agent counts as lost is shown once an item, also for a single rank."""
    (tmp_path / "meeting").mkdir()
    runs = tmp_path / "runs"
    subprocess.run(
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
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    ended = Ended(0, "", "", runs, runs).settled()
    instance = instance_of(ended)
    (counted,) = ended.rows("SELECT count(*) AS steps FROM steps")
    arrived(servers, instance, counted["steps"])
    missing = lost(read_accounts(ended.folder))

    assert missing > 0
    for rank in (".*", "0"):
        assert Shown(ended, servers, instance, rank).figure("Lost telemetry") == missing
