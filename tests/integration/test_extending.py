"""What the recipes of ``docs/EXTENDING.md`` add appears in servers, on screen and in answers.

All of them are installed at once, as they stand on the page, beside a program that is started by
``otel-mlperf run``; agent, Collector and Prometheus are real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import recipes
import warm_python
from runs import LIMIT_S, PROGRAMS, Ended, adds_up, agent_of, ending, environment
from servers.answers import prometheus_rules, promql
from servers.running import Collector, Prometheus, free_ports, wait_until
from terminal_screen import Screen

from otel_mlperf import names
from otel_mlperf.findings.finding_table import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.servers

GPU = {"hw_id": "ACME-0001", "hw_name": "gpu0"}
ALERT = "AcmeTokenizing"
SOONER = {"interval: 30s": "interval: 1s", "[5m]": "[15s]"}
"""How often rules are evaluated, and over how long: as shipped, none fires within a minute."""
PROGRAM = "own_loop"


class AcmeRun:
    """A program that trains with what is installed in ``site`` until it is told to end."""

    def __init__(self, site: Path, folder: Path, **variables: str) -> None:
        self.runs, self._until, self.id = folder / "runs", folder / "until", uuid.uuid4().hex
        self.tracker = folder / "acme.jsonl"
        self._given = {"PYTHONPATH": str(site), "ACME_TRACKER": str(self.tracker)}
        settings = variables | {
            "OTEL_SERVICE_NAME": self.id,
            "OTEL_METRIC_EXPORT_INTERVAL": "400",
            "OTEL_MLPERF_READINGS_INTERVAL": "400",
            "OTEL_MLPERF_CONSOLE": "false",
        }
        self._process = warm_python.Popen(
            self._command("run", str(PROGRAMS / f"{PROGRAM}.py"), str(self._until)),
            env=self.environment(**settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> AcmeRun:
        return self

    def __exit__(self, *_: object) -> None:
        with ending([self._process]):
            pass

    def environment(self, **variables: str) -> dict[str, str]:
        """One in which the packages are installed."""
        return environment(self.runs, **self._given, **variables)

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "otel_mlperf", *words]

    def screen(self, *words: str) -> Screen:
        """A command on a terminal."""
        return Screen(self._command(*words), self.environment())

    def told(self, *words: str) -> str:
        """What a command says of the run."""
        return warm_python.run(
            self._command(*words), env=self.environment(), capture_output=True, text=True,
            check=False, timeout=LIMIT_S,
        ).stdout  # fmt: skip

    def end(self) -> Ended:
        """Ends it; what it says itself is how many steps it made."""
        self._until.touch()
        output, errors = self._process.communicate(timeout=LIMIT_S)
        ended = Ended(self._process.returncode, output, errors, self.runs, self.runs)
        return ended.settled()


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Every recipe of the page, installed.

    The agent takes nothing from its program but where packages are installed, so the folder is
    called as such folders are.
    """
    folder = tmp_path_factory.mktemp("installed") / "site-packages"
    for number, recipe in enumerate(recipes.recipes(recipes.PAGE.read_text()).values()):
        recipes.install(recipe, folder, f"acme_{number}")
    return folder


@pytest.fixture(scope="module")
def prometheus(servers, site, tmp_path_factory) -> Iterator[Prometheus]:
    """One of its own, with the rules that are written where the finding is installed."""
    del servers  # says why there is no Prometheus, and is what the Collector sends spans to
    folder = tmp_path_factory.mktemp("prometheus")
    server = Prometheus(folder, free_ports(1)[0], {})
    rules = warm_python.check_output(
        [sys.executable, "-m", "otel_mlperf.report.alert_rules"],
        env=environment(folder, PYTHONPATH=str(site)), text=True,
    )  # fmt: skip
    for shipped, sooner in SOONER.items():
        assert shipped in rules
        rules = rules.replace(shipped, sooner)
    (folder / "rules.yaml").write_text(rules)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def live(servers, prometheus, site, tmp_path_factory) -> Iterator[AcmeRun]:
    """A run that goes on, and sends to that Prometheus."""
    collector = Collector(tmp_path_factory.mktemp("collector"), servers.jaeger_server, prometheus)
    collector.start()
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.otlp_endpoint}
    with AcmeRun(site, tmp_path_factory.mktemp("live"), **endpoint) as run:
        yield run
    collector.stop()


@pytest.fixture(scope="module")
def killed(site, tmp_path_factory) -> tuple[AcmeRun, Ended]:
    """A run that has ended, whose agent was killed in between."""
    with AcmeRun(site, tmp_path_factory.mktemp("killed")) as run:
        wait_until(lambda: run.tracker.exists() and run.tracker.read_text(), what="first batches")
        first = wait_until(lambda: agent_of(run.runs), what="the agent")
        os.kill(first, signal.SIGKILL)
        before = run.tracker.stat().st_size
        wait_until(lambda: agent_of(run.runs) not in (None, first), what="another agent")
        wait_until(lambda: run.tracker.stat().st_size > before, what="batches after it")
        ended = run.end()
    assert ended.code == 0, ended.errors
    return run, ended


@pytest.fixture
def ask(live, prometheus):
    """The value of the run's one series that has these labels."""

    def value(metric: names.Metric | str, **labels: str) -> float:
        name = metric if isinstance(metric, str) else metric.prometheus
        pairs = ({"service_name": live.id} | labels).items()
        which = ",".join(f'{label}="{value}"' for label, value in pairs)
        query = f"{name}{{{which}}}"
        (sample,) = wait_until(lambda: promql(prometheus.url, query), what=query)
        return sample.value

    return value


def test_invented_gpu_is_in_prometheus(ask):
    """Under the names of every vendor's GPUs, and what only this one has under its own."""
    assert ask(names.GPU_UTILIZATION, hw_gpu_task="general", **GPU) == 0.5
    assert ask(names.HW_POWER, hw_type="gpu", **GPU) == 350
    assert ask("acme_gpu_tiles", **GPU) == 12


def test_invented_gpu_is_in_top(live):
    """For programs and on the screen."""

    def now() -> dict[str, Any] | None:
        told = live.told("top", "--json")  # nothing before the run has begun
        devices = json.loads(told)["devices"] if told else ()
        return devices[0] if devices else None

    device = wait_until(now, what="the GPU")
    assert (device["id"], device["name"]) == (GPU["hw_id"], GPU["hw_name"])
    assert (device["utilization"], device["power_w"]) == (0.5, 350)

    screen = live.screen("top")
    with ending([screen.process]):
        wait_until(lambda: "350" in screen.read(), what="a frame with the GPU")
    assert GPU["hw_name"] in screen.said
    assert "50 %" in screen.said
    screen.close()


def test_invented_reading_is_in_prometheus(ask):
    """With the unit that the metric of its sensor says."""
    assert ask("hw_coolant_temperature_celsius", hw_id="loop0") == 41.5


def test_metric_of_a_program_is_in_prometheus(ask):
    """Made where it is used."""
    assert ask("ml_user_tokens_total", lang="de") % 4 == 0


def test_alert_of_an_invented_finding_is_evaluated_and_fires(live, prometheus):
    """Among those of the package, on what the run sends."""

    def mine() -> dict[str, Any]:
        (rule,) = (rule for rule in prometheus_rules(prometheus.url) if rule["name"] == ALERT)
        return rule

    rule = wait_until(lambda: mine()["state"] == "firing" and mine(), what="the alert")
    assert rule["health"] == "ok"
    assert len(prometheus_rules(prometheus.url)) == 1 + sum(row.alert is not None for row in TABLE)
    (alert,) = rule["alerts"]
    assert alert["labels"]["severity"] == "warning"
    assert alert["annotations"]["summary"] == f"The tokenizer holds up {PROGRAM}."
    assert 0.2 < float(alert["value"]) <= 1.1


def test_destination_gets_everything_though_the_agent_is_killed(killed):
    """Each kept section and each point that its account says is there."""
    run, ended = killed
    accounting = json.loads(run.told("doctor", "--json"))["accounting"]
    spans, points = arrived(run, "spans"), arrived(run, "metrics")

    assert accounting == ended.accounts()
    for signal_name, names_by_batch in (("spans", spans), ("metrics", points)):
        account = accounting[signal_name]["acme"]
        assert adds_up(account)
        assert (account["lost"], account["pending"]) == ({}, 0)
        surplus = sum(map(len, names_by_batch.values())) - account["delivered"]
        assert surplus in {0, *came_twice(names_by_batch)}
    assert accounting["spans"]["acme"] == accounting["spans"]["store"]
    stored = {row["name"] for row in ended.rows("SELECT name FROM spans")}
    assert {name for batch in spans.values() for name in batch} == stored
    assert {name for batch in points.values() for name in batch} >= {
        "ml.training.steps", "acme.gpu.tiles", "hw.coolant.temperature",
    }  # fmt: skip


def arrived(run: AcmeRun, wanted: str) -> dict[int, list[str]]:
    """What each batch of a signal brought, by its number."""
    found: dict[int, list[str]] = {}
    for line in run.tracker.read_text().splitlines():
        number, signal_name, name = json.loads(line)
        if signal_name == wanted:
            found.setdefault(number, []).append(name)
    return found


def came_twice(batches: dict[int, list[str]]) -> set[int]:
    """How many items those batches have that may have come again.

    That happens to the one which the killed agent delivered and had no time to say so.
    """
    halves = ((batch[: len(batch) // 2], batch[len(batch) // 2 :]) for batch in batches.values())
    return {len(first) for first, second in halves if first == second}


def test_invented_finding_is_shown_wherever_findings_are(killed):
    """In the summary, for programs, and by doctor."""
    run, _ = killed
    findings = json.loads(run.told("summary", "--json"))["findings"]
    (found,) = (finding for finding in findings if finding["id"] == "acme_tokenizing")

    assert found["where"]["section"] == "tokenize"
    assert found["evidence"]["share"] > 0.2
    words = found["summary"].replace("%", " %")
    assert words in run.told("summary")
    assert words in " ".join(run.told("doctor").split())
    checks = json.loads(run.told("doctor", "--json"))["checks"]
    assert "acme_tokenizing" in {check["what"] for check in checks}


def test_steps_of_an_invented_framework_are_recorded(killed):
    """As many as its program made, without a word in it."""
    run, ended = killed
    steps = json.loads(run.told("summary", "--json"))["steps"]
    (row,) = ended.rows("SELECT count(*) AS steps FROM steps")

    assert steps["count"] == row["steps"] == int(ended.output) > 5
