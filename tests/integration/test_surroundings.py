"""A program continues in any environment, and one sentence reports what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from runs import LOUD, Ended, environment, run_program

from otel_mlperf.recorder.lifecycle.clocks import EARLIEST_NS
from otel_mlperf.store.run_folders import list_runs

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = """
import otel_mlperf as om
with om.start("odd", agent="none", console=False):
    for _ in om.steps(range(3)):
        with om.span("work"): pass
try:
    print("done")
except (OSError, AttributeError):
    pass
"""
QUIET = {"OTEL_MLPERF_READINGS": "none"}
"""No spans but the program's: a collection of garbage would be one."""
GONE = "import os; os.rmdir(os.getcwd())\n" + TRAIN
CLOSED = "import sys; sys.stdout = sys.stderr = None\n" + TRAIN
LIMITED = """
import resource, sys
import otel_mlperf as om
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limits = used + (100 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]
if "hard" in sys.argv:
    limits = limits[0], limits[0]
resource.setrlimit(resource.RLIMIT_AS, limits)
with om.start("limited"):
    for _ in om.steps(range(3)):
        with om.span("work"): pass
assert resource.getrlimit(resource.RLIMIT_AS) == limits
"""
EARLY = """
import time
begun, time.time_ns = time.monotonic_ns(), lambda: time.monotonic_ns() - begun - 86400 * 10**9
""" + TRAIN.replace('agent="none", ', "")
BESIDE = f"""
import importlib
for name in ("_interpreters", "_xxsubinterpreters"):
    try: made = importlib.import_module(name)
    except ImportError: continue
    other = made.create()
    made.run_string(other, {TRAIN!r})
    made.destroy(other)
    break
"""


def run_limited(runs: Path, *arguments: str) -> Ended:
    """A program that may map 100 MiB more than it has mapped when it starts to record."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments],
        env=environment(runs, **QUIET, **LOUD), capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr, runs, runs)


@pytest.mark.fault("F29")
def test_a_limit_of_addresses_is_the_programs_alone(tmp_path):
    """Its agent lifts the soft one, and so does what prints the summary; the program's stays."""
    ended = run_limited(tmp_path / "runs")

    assert ended.code == 0, ended.errors
    account = ended.settled().accounts()["spans"]["store"]
    assert (account["created"], account["lost"], account["pending"]) == (10, {}, 0)
    assert "limited" in ended.errors
    assert "mapped" not in ended.errors


@pytest.mark.fault("F29")
def test_an_agent_that_may_not_map_enough_is_not_started(tmp_path):
    """One sentence says why and what to do, and ``recover`` reads all of it."""
    ended = run_limited(tmp_path / "runs", "hard")

    assert ended.code == 0, ended.errors
    _, said = ended.errors.splitlines()  # the first line says that it records
    assert "cannot be started at all" in said
    assert "350 MiB are required: raise RLIMIT_AS" in ended.errors
    command = [sys.executable, "-m", "otel_mlperf", "doctor", "--recover", "latest"]
    subprocess.run(command, env=environment(ended.runs), check=True, capture_output=True)
    assert ended.settled().accounts()["spans"]["store"]["created"] == 10


@pytest.mark.fault("F29")
@pytest.mark.parametrize("limit_mib", [200, 600])
def test_a_command_that_may_not_map_enough_says_so(tmp_path, limit_mib):
    """Neither a traceback, nor a file that is called damaged: one sentence with what helps."""
    runs = tmp_path / "runs"
    assert run_program(runs, "--steps", "3").settled().code == 0
    line = f"ulimit -v {limit_mib << 10}; exec {sys.executable} -m otel_mlperf summary"
    done = subprocess.run(
        ["bash", "-c", line], env=environment(runs), capture_output=True, text=True, check=False
    )

    assert done.returncode in (65, 71)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "are required: raise RLIMIT_AS with ulimit -H -v" in done.stderr


@pytest.mark.fault("F30")
def test_a_clock_before_1970_costs_no_duration(tmp_path):
    """Spans last as long as they did, in the first hours of 1970."""
    runs = tmp_path / "runs"
    done = subprocess.run(
        [sys.executable, "-c", EARLY], env=environment(runs, OTEL_MLPERF_TRACE_EVERY="1", **QUIET),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ended = Ended(0, done.stdout, done.stderr, runs, runs).settled()
    spans = ended.rows("SELECT start_ns, end_ns FROM spans")

    assert len(spans) == ended.accounts()["spans"]["store"]["delivered"] == 10
    assert all(0 < row["start_ns"] <= row["end_ns"] for row in spans)
    assert list_runs(runs)[0].facts.started_ns == EARLIEST_NS


def go_on(program: str, place: Path, **variables: str) -> list[str]:
    """What a program says that is started there with these variables alone, and ends well."""
    place.mkdir()
    environ = {"PATH": os.environ["PATH"]} | variables
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=place, env=environ, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.fault("F100")
@pytest.mark.parametrize(
    ("program", "variables", "said"),
    [
        pytest.param(TRAIN, {}, [], id="no home"),
        pytest.param(TRAIN, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, [],
                     id="ascii"),
        pytest.param(CLOSED, {}, [], id="no output"),
        pytest.param(TRAIN, {"RANK": "9" * 23, "WORLD_SIZE": "x"}, [
            f"RANK={'9' * 23} is not a valid "
            "number", "WORLD_SIZE=x is not a valid number"], id="numbers"),
        pytest.param(TRAIN, {"OTEL_RESOURCE_ATTRIBUTES": "a=" + "x" * 3000}, [
            "OTEL_RESOURCE_ATTRIBUTES is too long"], id="resource"),
        pytest.param(GONE, {}, [
            "creating a run folder in otel-runs: the working directory is gone; set "
            "OTEL_MLPERF_DIR; nothing is recorded"], id="no directory"),
        pytest.param(BESIDE, {}, ["otel_mlperf records only in the main interpreter of a process"],
                     id="subinterpreter"),
        pytest.param(EARLY.replace("console", 'agent="none", console'), {}, [
            "the system clock shows 1970 or earlier"], id="no date"),
        pytest.param(TRAIN, {"OTEL_MLPERF_DIR": "/sys{folder}"}, ["writing the run folder: "],
                     id="no disk"),
    ],
)  # fmt: skip
def test_odd_surroundings_end_no_program(tmp_path, program, variables, said):
    """One sentence for each thing that cannot be, and the program goes on."""
    variables = {name: value.format(folder=tmp_path) for name, value in variables.items()}
    told = go_on(program, tmp_path / "here", **variables)

    assert len(told) == len(said)
    for sentence, start in zip(sorted(told), sorted(said), strict=True):
        assert sentence.startswith(f"otel_mlperf: {start}")
