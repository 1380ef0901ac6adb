"""Integrations are found, switched on, and harmless if they are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import warm_python
from runs import LIMIT_S, PROGRAMS, settle

from otel_mlperf.errors import ConfigError
from otel_mlperf.integrations import switch
from otel_mlperf.recorder.core import faults
from otel_mlperf.store.run_folders import list_runs

FIT = """
from tinyfit import Trainer

trainer = Trainer()
trainer.fit([[1.0, 2.0], [3.0, 4.0], [5.0]], epochs=2)
print(f"{trainer.weight:.6f}")
"""
ITSELF = "import otel_mlperf as om\nom.start('itself')\n"
ASKED = ITSELF + "om.integrate('tinyfit')\n"
BROKEN = {
    "a module that is not there": "",
    "a module that fails": "1 / 0",
    "a module that ends the program": "raise SystemExit(7)",
    "no such class": "Integration = None",
    "a class that wants more": "class Fit:\n    def __init__(self, more): ...",
    "a class without a name": "class Fit: ...",
    "a switch that fails": """
class Fit:
    name, module, needs = "fit", "tinyfit.trainer", ()
    def switch_on(self, framework):
        framework.Trainer.fit()
""",
    "another version of the framework": """
class Fit:
    name, module, needs = "fit", "tinyfit.trainer", ("Trainer.fit", "Trainer.steps.begin")
    def switch_on(self, framework):
        raise SystemExit("switched on")
""",
}


def offer(folder, value):
    """Makes the folder one in which a package is installed that offers an integration."""
    package = folder / "tinyfit_integration-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tinyfit-integration\n")
    name = value.partition("_")[0]
    (package / "entry_points.txt").write_text(f"[otel_mlperf.integrations]\n{name} = {value}\n")
    return folder


@pytest.fixture
def execute(tmp_path):
    """Runs an interpreter in the test's folder, with the invented framework on its path.

    It returns once the agent has left, too.
    """
    site = offer(tmp_path / "site", "tinyfit_integration:TinyFit")

    def start(*words, path=site, **more):
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL", "PYTHON"))}
        settings = {
            "OTEL_MLPERF_DIR": "runs",
            "OTEL_MLPERF_CONSOLE": "false",
            "PYTHONPATH": os.pathsep.join(map(str, (path, PROGRAMS))),
        }
        done = warm_python.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environ | settings | more,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        for run in list_runs(tmp_path / "runs"):
            settle(run.path)
        return done

    return start


def summary(execute):
    done = execute("-m", "otel_mlperf", "summary", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_recorded(found):
    """Six steps of three batches in two epochs, the house's categories, two validations beside."""
    rows = [(row["name"], row["category"]) for row in found["steps"]["rows"]]
    assert (found["steps"]["phase"], found["steps"]["count"]) == ("train", 6)
    assert rows == [
        ("data wait", "data_loading"),
        ("forward", "forward"),
        ("backward", "backward"),
        ("optimizer", "optimizer"),
        ("untracked", ""),
    ]
    assert {row["name"]: row["count"] for row in found["outside"]}["validate"] == 2
    assert list(found["last"]) == ["weight"]


def test_installed_integration_is_switched_on_by_run(execute, tmp_path):
    """An untouched script of the framework is recorded, and does what it does without us."""
    (tmp_path / "train.py").write_text(FIT)
    plain = execute("train.py")

    run = execute("-m", "otel_mlperf", "run", "train.py")

    assert (run.returncode, run.stdout, run.stderr) == (0, plain.stdout, "")
    assert_recorded(summary(execute))


@pytest.mark.slow
def test_integration_that_is_off_sees_nothing(execute, tmp_path):
    """A name in the settings is not switched on by `run`; the program may still ask for it."""
    (tmp_path / "train.py").write_text(FIT)
    (tmp_path / "asks.py").write_text(ASKED + FIT)
    off = {"OTEL_MLPERF_DISABLED_INTEGRATIONS": "dataloader,tinyfit,lightening"}

    run = execute("-m", "otel_mlperf", "run", "train.py", **off)

    assert run.returncode == 0
    assert run.stderr == (
        "otel_mlperf: disabled_integrations: unknown integration 'lightening'; known: "
        "dataloader, keras, tinyfit, torch\n"
    )
    assert summary(execute)["steps"] is None
    assert execute("-m", "otel_mlperf", "run", "asks.py", **off).returncode == 0
    assert_recorded(summary(execute))


def test_one_line_in_a_program_switches_it_on(execute, tmp_path):
    """A program that starts its run itself asks by name, before the framework is imported."""
    (tmp_path / "train.py").write_text(ASKED + FIT)

    done = execute("train.py")

    assert (done.returncode, done.stderr) == (0, "")
    assert_recorded(summary(execute))


LISTENED = """
calls = []
om.on_step_end(lambda *call: calls.append(call))
om.on_phase(lambda *call: calls.append(call))
"""


def test_who_listens_hears_the_framework(execute, tmp_path):
    """Steps and phases that an integration says reach the callbacks of the program."""
    (tmp_path / "train.py").write_text(ASKED + LISTENED + FIT + "print(calls)")

    done = execute("train.py")

    def epoch(first):
        steps = [("train", number) for number in range(first, first + 3)]
        validation = [("validate", number) for number in range(first, first + 3)]
        return [*steps, ("validate", True), *validation, ("validate", False)]

    assert done.stderr == ""
    assert done.stdout.splitlines()[1] == str(epoch(0) + epoch(3))


@pytest.mark.slow
def test_program_that_starts_a_run_says_what_is_recorded(execute, tmp_path):
    """Under `run` integrations give way to it, and come back where it asks for them."""
    (tmp_path / "train.py").write_text(FIT + ITSELF + FIT)
    (tmp_path / "asks.py").write_text(FIT + ASKED + FIT)

    assert execute("-m", "otel_mlperf", "run", "train.py").returncode == 0
    assert summary(execute)["steps"]["count"] == 6
    assert execute("-m", "otel_mlperf", "run", "asks.py").returncode == 0
    assert summary(execute)["steps"]["count"] == 12


@pytest.mark.sampled(3)
@pytest.mark.fault("F50")
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_broken_integration_costs_itself_only(execute, tmp_path, text):
    """The program prints what it prints and ends as it ends; one line says what is missing."""
    (tmp_path / "train.py").write_text(FIT + "raise SystemExit(3)")
    site = offer(tmp_path / "broken", "fit_integration:Fit")
    if text:
        (site / "fit_integration.py").write_text(text)
    plain = execute("train.py")

    run = execute("-m", "otel_mlperf", "run", "train.py", path=site)

    assert (run.returncode, run.stdout) == (3, plain.stdout)
    assert run.stderr.startswith("otel_mlperf: the integration 'fit'")
    assert run.stderr.count("\n") == 1
    assert summary(execute)["name"] == "train"


@pytest.mark.slow
def test_run_knows_who_sees_the_program(execute, tmp_path):
    """By name, once the framework is there; nobody, once the program says what is recorded."""

    def known(text, *words):
        (tmp_path / "train.py").write_text(text)
        assert execute(*words, "train.py").returncode == 0
        return summary(execute)["integrations"]

    under_run = ("-m", "otel_mlperf", "run")
    assert known("print()", *under_run) == []
    assert known(FIT, *under_run) == ["tinyfit"]
    assert known(FIT + ITSELF, *under_run) == []
    assert known(ASKED + FIT) == ["tinyfit"]
    assert known(FIT + ASKED) == ["tinyfit"]
    assert known("import otel_mlperf as om\nom.integrate('tinyfit')\n" + FIT + ITSELF) == [
        "tinyfit"
    ]


def test_broken_one_leaves_the_others(execute, tmp_path):
    """What another package offers is switched on all the same."""
    (tmp_path / "train.py").write_text(FIT)
    site = offer(tmp_path / "broken", "fit_integration:Fit")

    both = os.pathsep.join(map(str, (site, tmp_path / "site")))
    run = execute("-m", "otel_mlperf", "run", "train.py", path=both)

    assert run.returncode == 0
    assert_recorded(summary(execute))


def test_failure_is_counted(tmp_path, monkeypatch):
    """A run's journal counts it as an error inside the recorder, which `doctor` shows."""
    counted = []
    monkeypatch.setattr(faults._Faults, "count", lambda: counted.append(1))
    monkeypatch.setattr(faults, "_said", set())
    monkeypatch.setattr(switch, "BUILT_IN", ())
    monkeypatch.syspath_prepend(offer(tmp_path, "fit_integration:Fit"))

    switch.integrate_all()

    assert counted == [1]


def test_unknown_name_is_an_error(tmp_path, monkeypatch):
    """Setting up may raise: with the names that there are, or with why one cannot be loaded."""
    monkeypatch.syspath_prepend(offer(tmp_path, "fit_integration:Fit"))

    with pytest.raises(
        ConfigError, match=r"unknown integration 'lightening'; known: dataloader, fit, keras, torch"
    ):
        switch.integrate("lightening")
    with pytest.raises(ConfigError, match=r"'fit' \(fit_integration:Fit\) cannot be loaded: Mod"):
        switch.integrate("fit")


def test_nothing_is_read_where_nothing_is_offered(tmp_path):
    """Python's reader of installed packages is loaded only where it finds something."""
    code = (
        "import sys; from otel_mlperf.integrations.switch import offered_by; "
        "print(len(offered_by(sys.argv[1:])), 'importlib.metadata' in sys.modules)"
    )
    packages = [tmp_path / "with", tmp_path / "without"]
    offer(packages[0], "fit_integration:Fit")
    (packages[1] / "other-1.0.dist-info").mkdir(parents=True)

    def look(path):
        words = [sys.executable, "-c", code, str(path), "/nowhere"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    assert [look(path) for path in packages] == ["1 True\n", "0 False\n"]
