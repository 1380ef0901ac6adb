"""The real ``opentelemetry-instrument`` records a program that has no calls of ours.

It loads what packages offer by entry points; those are the ones of this tree's wheel.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import warm_python
from built_wheel import build, unpack_metadata
from runs import LIMIT_S, Ended, environment
from servers.running import free_ports

# What the command of that name does; an environment that shares packages may lack its script.
INSTRUMENT = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"

TRAIN = """
import os, subprocess, sys
import torch
from opentelemetry import metrics, trace
from torch.utils.data import DataLoader

tracer = trace.get_tracer("library")
requests = metrics.get_meter("library").create_up_down_counter("requests")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(torch.ones(24, 4), batch_size=4):
    optimizer.zero_grad()
    with tracer.start_as_current_span("exchange"):
        requests.add(1)
    model(x).sum().backward()
    optimizer.step()
if "--helper" in sys.argv:
    subprocess.run([sys.executable, "helper.py"], check=True)
print("trained", type(trace.get_tracer_provider()).__name__, os.environ.get("PYTHONPATH"))
sys.exit(0 if "RANK" in os.environ else 3)  # a launcher ends the others when one rank fails
"""

OTHER = """
class Configurator:
    def configure(self, **about):
        print("other configured", sorted(about))
"""


@pytest.fixture(scope="module")
def offered(tmp_path_factory):
    """A folder from which Python takes the package's entry points."""
    return unpack_metadata(build(tmp_path_factory.mktemp("wheel")), tmp_path_factory.mktemp("path"))


@pytest.fixture
def instrument(tmp_path, offered):
    """Runs a program under ``opentelemetry-instrument`` until it and its agent have ended."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "helper.py").write_text("print('helped')")
    runs = tmp_path / "runs"

    def run(*command, path=(), start=warm_python.run, **variables) -> Ended:
        paths = ":".join(map(str, (*path, offered)))
        done = start(
            [sys.executable, "-c", INSTRUMENT, *command],
            cwd=tmp_path,
            env=environment(runs, PYTHONPATH=paths, **variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        return Ended(done.returncode, done.stdout, done.stderr, runs, tmp_path / "count")

    return run


@pytest.mark.slow
def test_program_is_recorded_as_it_stands(instrument):
    """Steps, sections, and what it records through the API; its exit code is its own."""
    started = instrument(sys.executable, "train.py", "--helper", start=subprocess.run)
    ended = started.settled()

    assert ended.code == 3
    assert "trained JournalTracerProvider" in ended.output
    assert "helped" in ended.output
    assert "train · " in ended.summary
    (steps,) = ended.rows("SELECT count(*) AS n FROM steps")
    assert steps["n"] == 6
    (spans,) = ended.rows("SELECT sum(count) AS n FROM sections WHERE name = 'exchange'")
    assert spans["n"] == 6
    (kind,) = ended.rows("SELECT kind FROM instruments WHERE name = 'requests'")
    assert kind["kind"] == "updowncounter"


def test_other_configurator_goes_on(instrument, tmp_path):
    """One that nobody has put ours in place of is called; the program is recorded all the same."""
    place = tmp_path / "other"
    package = place / "a_distribution-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: a-distribution\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        "[opentelemetry_configurator]\nother = other_configurator:Configurator\n"
    )
    (place / "other_configurator.py").write_text(OTHER)

    ended = instrument(sys.executable, "train.py", path=[place]).settled()
    assert "other configured ['auto_instrumentation_version']" in ended.output
    assert "trained ProxyTracerProvider" in ended.output
    assert ended.rows("SELECT count(*) AS n FROM steps") == [{"n": 6}]

    distro = {"OTEL_PYTHON_DISTRO": "otel_mlperf", "OTEL_MLPERF_DIR": str(tmp_path / "again")}
    named = instrument(sys.executable, "train.py", path=[place], **distro)
    assert "other configured" not in named.output
    assert "trained JournalTracerProvider" in named.output


@pytest.mark.slow
def test_ranks_of_a_launcher_are_recorded(instrument):
    """Below ``torchrun`` each rank is recorded, once, and the launcher is not."""
    (port,) = free_ports(1)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    ended = instrument(*launcher, "--master-port", str(port), "train.py").settled()

    assert ended.output.count("trained") == 2
    rows = ended.rows("SELECT rank, count(*) AS n FROM steps GROUP BY rank ORDER BY rank")
    assert rows == [{"rank": 0, "n": 6}, {"rank": 1, "n": 6}]


def test_settings_that_are_wrong(instrument):
    """A configuration file that is not there is named, and the program is recorded without it."""
    ended = instrument(sys.executable, "train.py", OTEL_MLPERF_CONFIG="nowhere.yaml")

    assert ended.code == 3
    assert "trained" in ended.output
    assert "nowhere.yaml: No such file" in ended.errors
    assert ended.runs.exists()


def test_switched_off(instrument):
    """The standard's own switches hold."""
    off = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "otel_mlperf",
           "OTEL_PYTHON_CONFIGURATOR": "none"}  # fmt: skip
    ended = instrument(sys.executable, "train.py", **off)
    assert "trained ProxyTracerProvider" in ended.output
    assert not ended.runs.exists()
